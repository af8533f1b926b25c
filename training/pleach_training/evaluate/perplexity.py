"""How well a model predicts held-out replies, per byte of text, so that models with different tokenizers compare.

    python -m pleach_training.evaluate.perplexity --target PATH --conversations instruct_val.jsonl.zst --out FILE.json

Only the assistants' last words count, given everything before; conversations longer than `--longest` tokens are left out.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from ..drafter.targets import open_model, open_tokenizer
from ..target.corpus import Conversation, read_conversations


@torch.no_grad()
def reply_loss(model: Any, tokenizer: Any, conversation: Conversation, longest: int) -> tuple[float, int] | None:
    """Summed loss in nats of the last reply and its bytes; `None` if it is too long or nobody replies."""
    turns = [{"role": m.role, "content": m.content.strip()} for m in conversation.messages]
    if turns[-1]["role"] != "assistant" or not turns[-1]["content"]:
        return None
    asked = tokenizer.apply_chat_template(turns[:-1], add_generation_prompt=True, tokenize=True, return_dict=False)
    reply = tokenizer(turns[-1]["content"], add_special_tokens=False).input_ids
    if len(asked) + len(reply) > longest:
        return None
    device = next(model.parameters()).device
    ids = torch.tensor([[*asked, *reply]], device=device)
    logits = model(ids, logits_to_keep=len(reply) + 1).logits[0, :-1].float()
    loss = F.cross_entropy(logits, ids[0, len(asked) :], reduction="sum")
    return float(loss), len(turns[-1]["content"].encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--conversations", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=200, help="conversations of each category")
    parser.add_argument("--longest", type=int, default=1024)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    model, tokenizer = open_model(args.target, args.device), open_tokenizer(args.target)
    nats: dict[str, float] = defaultdict(float)
    sizes: dict[str, int] = defaultdict(int)
    counts: dict[str, int] = defaultdict(int)
    for conversation in read_conversations(args.conversations):
        category = conversation.category
        if counts[category] >= args.limit:
            continue
        found = reply_loss(model, tokenizer, conversation, args.longest)
        if found is not None:
            nats[category] += found[0]
            sizes[category] += found[1]
            counts[category] += 1
    result = {
        category: {
            "replies": counts[category],
            "bytes": sizes[category],
            "bits_per_byte": round(nats[category] / sizes[category] / math.log(2), 4),
        }
        for category in sorted(nats)
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
