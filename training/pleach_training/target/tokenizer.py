"""The bundled model's tokenizer: byte-level BPE with Qwen3.5's split rule and ChatML tokens.

python -m pleach_training.target.tokenizer --data DATA --out DIR
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from .corpus import Conversation, read_conversations, read_documents

# Qwen3.5's rule: digits alone, combining marks with their letters.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
DRAFT_MASK = "<|draft_mask|>"
SPECIAL = (
    END_OF_TEXT, TURN_START, TURN_END, DRAFT_MASK,
    "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>",
)  # fmt: skip
# Added, but part of the text that a user sees or a parser reads.
VISIBLE = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")

CHAT_TEMPLATE = """\
{%- for message in messages %}
    {%- if message.role not in ['system', 'user', 'assistant', 'tool'] %}
        {{- raise_exception('unexpected role ' + message.role + ': this model knows system, user, assistant and tool') }}
    {%- endif %}
    {%- if message.role == 'system' and not loop.first %}
        {{- raise_exception('the system message must come first') }}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Trains the BPE merges on `texts`; the added tokens take the last ids below `vocab_size`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    num_added = len(SPECIAL) + len(VISIBLE)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - num_added,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        max_token_length=24,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in VISIBLE])
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, out: Path, max_length: int) -> None:
    """Writes `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja` to the folder `out`."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "add_bos_token": False,
        "bos_token": None,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def render(conversation: Conversation) -> str:
    """A conversation as plain text, for counting merges."""
    return "\n".join(message.content for message in conversation.messages)


def sample_texts(data: Path, keep: dict[str, float], seed: int) -> Iterator[str]:
    """A share `keep[NAME]` of the corpora `code`, `text` and `instruct` in the folder `data`."""
    rng = random.Random(seed)
    for name in ("code", "text"):
        for document in read_documents(data / f"{name}.txt.zst"):
            if rng.random() < keep[name]:
                yield document[:20_000]
    for conversation in read_conversations(data / "instruct.jsonl.zst"):
        share = keep["translate"] if conversation.category == "translate" else keep["instruct"]
        if rng.random() < share:
            yield render(conversation)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--vocab-size", type=int, default=12288)
    parser.add_argument("--max-length", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    keep = {"code": 0.25, "text": 0.4, "instruct": 0.35, "translate": 0.1}
    tokenizer = train_tokenizer(sample_texts(args.data, keep, args.seed), args.vocab_size)
    save_tokenizer(tokenizer, args.out, args.max_length)
    print(f"{tokenizer.get_vocab_size()} tokens written to {args.out}")


if __name__ == "__main__":
    main()
