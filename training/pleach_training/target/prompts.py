"""Writes everyday prompts, for a teacher to answer: topics of `data/topics.txt`, put into many ways to ask.

python -m pleach_training.target.prompts --out prompts.jsonl
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .basics import DATA
from .corpus import read_conversations

THINGS = (
    "What are the most important facts about {}?", "Explain {}.", "Explain {} to a child.", "Explain {} in simple terms.",
    "Tell me about {}.", "Tell me an interesting fact about {}.", "Why is it useful to know about {}?", "Write a short paragraph about {}.",
    "Write a short story about {}.", "Write a poem about {}.", "Give me three facts about {}.", "What do you know about {}?",
    "Describe {} in two sentences.", "What should I know about {}?", "Can you explain {} to me?", "Summarize what is known about {}.",
    "What are common questions about {}?", "How would you describe {}?", "Write an introduction to {}.", "Why do people care about {}?",
    "What is a good way to learn about {}?", "I have to give a talk about {}. What should I say?", "Write five sentences about {}.",
    "What is interesting about {}?", "How have {} changed the world?", "What are the good and bad sides of {}?",
    "Write a dialogue between two people who talk about {}.", "Give me ideas for an essay about {}.",
)  # fmt: skip
# `{0}` is the topic, `{1}` is or are, `{2}` does or do.
AGREEING = (
    "What {1} {0}?", "what {1} {0}", "Why {1} {0} important?", "Where {1} {0} found?", "How {2} {0} work?", "What {1} {0} used for?",
    "What {1} {0} like?", "Who discovered what {0} {1}?", "How old {1} {0}?", "What {1} {0} made of?",
)  # fmt: skip
DOINGS = (
    "How do I get better at {}?", "Give me tips for {}.", "Give me five tips for {}.", "What is the best way to start {}?", "Why is {} hard?",
    "Write a short guide to {}.", "What do I need for {}?", "I have trouble with {}. What should I do?", "What are common mistakes when {}?",
    "Explain {} step by step.", "Is {} worth the time?", "How long does it take to learn {}?", "Write a to-do list for {}.",
    "Give me advice on {}.", "What are the benefits of {}?",
)  # fmt: skip
LETTERS = (
    "Write an email to {} about {}.",
    "Write a short letter to {} about {}.",
    "Help me write a message to {} about {}.",
)
STORIES = (
    "Write a story about {}.", "Tell me a short story about {}.", "Write a poem about {}.", "Write the beginning of a story about {}.",
    "Write a funny story about {}.", "Write a story for children about {}.", "Write a story about {} with a happy ending.",
)  # fmt: skip
FEELINGS = ("I feel {} today.", "I am {} today. What should I do?", "My friend is {}. How can I help?", "Why do I feel {}?", "What does it mean to be {}?")  # fmt: skip


def read_topics() -> dict[str, list[str]]:
    """The lists of `data/topics.txt` by name."""
    found = {}
    for section in (DATA / "topics.txt").read_text(encoding="utf-8").split("# ")[1:]:
        head, body = section.split("\n", 1)
        found[head.split(":")[0]] = [topic.strip() for topic in body.replace("\n", " ").split(";")]
    return found


def is_plural(topic: str) -> bool:
    """Whether a topic takes "are"; by its ending, but for a few names."""
    singular = ("ss", "us", "is", "ics", "gas", "Mars", "United States")
    return topic.endswith("s") and not topic.endswith(singular)


def chat_prompts() -> Iterator[str]:
    """Every way to ask about every topic."""
    topics = read_topics()
    for topic in topics["things"]:
        words = ("are", "do") if is_plural(topic) else ("is", "does")
        yield from (way.format(topic, *words) for way in AGREEING)
    for name, ways in (("things", THINGS), ("doings", DOINGS), ("heroes", STORIES), ("feelings", FEELINGS)):
        yield from (way.format(topic) for topic in topics[name] for way in ways)
    for person in topics["people"]:
        yield from (way.format(person, matter) for matter in topics["matters"] for way in LETTERS)


def borrowed(path: Path, sources: list[str]) -> Iterator[str]:
    """The first words of conversations of some sources, if they are short."""
    for conversation in read_conversations(path):
        first = conversation.messages[0]
        if conversation.source in sources and first.role == "user" and len(first.content) <= 600:
            yield first.content


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--borrow", type=Path, help="conversations whose questions are asked as well")
    parser.add_argument(
        "--sources", nargs="*", default=["dolly", "dolly_qa", "gpteacher-roleplay", "python_faq", "llms_scratch"]
    )
    parser.add_argument("--count", type=int, default=100_000, help="how many to write; all are used before one comes again")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    prompts = [*chat_prompts(), *(borrowed(args.borrow, args.sources) if args.borrow else ())]
    rng = np.random.default_rng(args.seed)
    order = np.concatenate([rng.permutation(len(prompts)) for _ in range(-(-args.count // len(prompts)))])
    with args.out.open("w", encoding="utf-8") as file:
        for i in order[: args.count]:
            row = {"category": "chat", "messages": [{"role": "user", "content": prompts[i]}]}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    print(f"{len(prompts)} ways to ask, {args.count} prompts")


if __name__ == "__main__":
    main()
