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
    "code_raw": 0.34, "text_raw": 0.11, "python": 0.17, "code_other": 0.05, "prose": 0.035, "quiz": 0.02,
    "dialogue": 0.04, "math": 0.06, "translate": 0.05, "summarise": 0.05, "json": 0.06, "basics": 0.005,
}  # fmt: skip
# Shares while it decays: what the model is asked for.
DECAY = {
    "code_raw": 0.18, "text_raw": 0.06, "python": 0.27, "code_other": 0.05, "prose": 0.09, "quiz": 0.03,
    "dialogue": 0.05, "math": 0.10, "translate": 0.03, "summarise": 0.05, "json": 0.06, "basics": 0.03,
}  # fmt: skip


def group_of(conversation: Conversation) -> str:
    """The group of a conversation, by its category and source."""
    category, source = conversation.category, conversation.source
    if source == "basics":
        return "basics"
    if category == "code":
        return "python" if source in _PYTHON else "code_other"
    if category == "chat":
        if source == "sgd-chat":
            return "dialogue"
        return "quiz" if source in _QUIZ else "prose"
    return category
