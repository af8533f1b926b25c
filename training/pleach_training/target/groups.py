"""Groups of training data and how often each is drawn."""

from __future__ import annotations

from .corpus import Conversation

_PYTHON = {
    "docstrings-write", "docstrings-complete", "algorithms_python", "gpteacher-code", "mbpp", "exercism_python",
    "coding_challenges",
}  # fmt: skip
_QUIZ = {"trivia", "factbook", "llms_scratch"}
# Shares of the rows while the learning rate is constant. A group is to be read fewer than about ten times: one that is read
# more often while the rate decays is learned by heart. `prose` went from 3.3 to 6.6 nats on held-out text, `teacher` from
# 1.44 (34 M tokens, read 2.5 times) to 2.75 (17 M tokens, read 16 times, most of them not for the first time).
STABLE = {
    "teacher": 0.475, "code_raw": 0.14, "text_raw": 0.04, "python": 0.07, "code_other": 0.03, "prose": 0.008, "quiz": 0.012,
    "dialogue": 0.03, "math": 0.03, "translate": 0.03, "summarise": 0.05, "json": 0.04, "basics": 0.045,
    "loops": 0.08,
}  # fmt: skip
# Shares while it decays: what the model is asked for.
DECAY = {
    "teacher": 0.475, "code_raw": 0.11, "text_raw": 0.03, "python": 0.08, "code_other": 0.03, "prose": 0.01, "quiz": 0.01,
    "dialogue": 0.03, "math": 0.035, "translate": 0.025, "summarise": 0.05, "json": 0.045, "basics": 0.07,
    "loops": 0.08,
}  # fmt: skip
# A group leaves the mixture once it was read so many times; the small set of everyday requests is meant to be known well.
MAX_EPOCHS = {"basics": 60}
DEFAULT_MAX_EPOCHS = 8


def group_of(conversation: Conversation) -> str:
    """The group of a conversation, by its category and source."""
    category, source = conversation.category, conversation.source
    if source in ("basics", "teacher"):
        return source
    if category == "code":
        return "python" if source in _PYTHON else "code_other"
    if category == "chat":
        if source == "sgd-chat":
            return "dialogue"
        return "quiz" if source in _QUIZ else "prose"
    return category
