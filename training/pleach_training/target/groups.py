"""Groups of training data and how often each is drawn."""

from __future__ import annotations

from .corpus import Conversation

_PYTHON = {
    "docstrings-write", "docstrings-complete", "algorithms_python", "gpteacher-code", "mbpp", "exercism_python",
    "coding_challenges",
}  # fmt: skip
_QUIZ = {"trivia", "factbook", "llms_scratch"}

# Shares of the rows while the learning rate is constant: raw code and prose carry the language.
STABLE = {
    "code_raw": 0.32, "text_raw": 0.10, "python": 0.16, "code_other": 0.05, "prose": 0.02, "quiz": 0.02,
    "dialogue": 0.04, "math": 0.06, "translate": 0.05, "summarise": 0.05, "json": 0.06, "basics": 0.005, "teacher": 0.07,
}  # fmt: skip
# Shares while it decays: what the model is asked for. A group that is read more than a few times in this phase is learned by
# heart: thirty percent of a run spent so raised the validation loss of `prose` from 3.3 to 6.6.
DECAY = {
    "code_raw": 0.25, "text_raw": 0.07, "python": 0.20, "code_other": 0.05, "prose": 0.02, "quiz": 0.02,
    "dialogue": 0.04, "math": 0.06, "translate": 0.03, "summarise": 0.04, "json": 0.05, "basics": 0.02, "teacher": 0.15,
}  # fmt: skip
# A group leaves the mixture once it was read so many times; the small set of everyday requests is meant to be known well.
MAX_EPOCHS = {"basics": 60}
DEFAULT_MAX_EPOCHS = 16


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
