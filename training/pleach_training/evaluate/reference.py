"""Records what drafter and Weaver compute at a few anchors of one reply, for tests of other implementations.

    python -m pleach_training.evaluate.reference --target PATH --drafter DIR --weaver DIR --replies FILE.npz --out FILE

All in f32 on the CPU, with the files' bf16 weights. Tensors, for `n` anchors, `T` tokens, block size `B`, pool size `P`:
`ids` `[T]`, `taps` `[T, taps * hidden]`, `hidden` `[T, hidden]` (the target's, final-normed), `anchors` `[n]` (places in
`ids`), `block_hidden` `[n, B, hidden]`, `pool_tokens` `[n, B - 1, P]`, `pool_scores` `[n, B - 1, P]` (drafter logits),
`queries` `[n, B - 1, hidden]` and `log_probs` `[n, B - 1, P]` (Weaver, along the text).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from ..drafter.data import Replies, Store, take_anchors
from ..drafter.targets import open_features
from ..drafter.train import DraftTrainer
from ..weaver.model import Weaver
from ..weaver.train import WeaverTrainConfig, frozen_drafter, load_weaver, make_pool


@torch.no_grad()
def record(draft: DraftTrainer, weaver: Weaver, store: Store, anchors: list[int]) -> dict[str, Tensor]:
    """The tensors of the module's description, for one sequence in `store`."""
    index = torch.arange(len(store.ids)).unsqueeze(0)
    places = torch.tensor([anchors])
    batch = take_anchors(index, torch.zeros_like(index), store.left.unsqueeze(0), places)
    block = draft.block(store, batch)
    hidden = draft.rows(block)
    pool = make_pool(hidden[:, 1:], block, draft.head, weaver.config.candidate_pool_size)
    flat = places[0]
    prefix = torch.cat([store.hidden[flat - 1].unsqueeze(1), hidden[:, 1:]], 1)
    path = flat.unsqueeze(-1) + torch.arange(hidden.shape[1] - 1)
    queries = weaver(prefix, F.embedding(store.ids[path], draft.embedding))
    rows = F.embedding(pool.places, draft.head)
    scores = pool.scores + (rows @ queries.unsqueeze(-1)).squeeze(-1)
    return {
        "ids": store.ids.int(),
        "taps": store.taps,
        "hidden": store.hidden,
        "anchors": flat.int(),
        "block_hidden": hidden,
        "pool_tokens": draft.draft_ids[pool.places].int(),
        "pool_scores": pool.scores,
        "queries": queries,
        "log_probs": scores.log_softmax(-1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--drafter", type=Path, required=True)
    parser.add_argument("--weaver", type=Path, required=True)
    parser.add_argument("--replies", type=Path, required=True)
    parser.add_argument("--split", default="code")
    parser.add_argument("--tokens", type=int, default=112)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    features = open_features(args.target, "cpu")
    draft = frozen_drafter(args.drafter, features, WeaverTrainConfig(), "cpu")
    replies = Replies.load(args.replies)
    room = args.tokens - 3 * draft.shape.block_size
    fits = (replies.split == args.split) & (replies.plen <= room) & (replies.plen + replies.glen >= args.tokens)
    one = replies.select(np.arange(len(fits)) == np.flatnonzero(fits)[0])
    one.ids, one.glen = one.ids[: args.tokens], args.tokens - one.plen
    store = Store.build(one, features, draft.shape.target_layer_ids, "cpu")
    first, last = int(one.plen[0]), args.tokens - draft.shape.block_size
    anchors = [first, (first + last) // 2, last]
    weaver = load_weaver(args.weaver, "cpu")
    assert isinstance(weaver, Weaver), "a recording needs a Weaver"
    found = record(draft, weaver, store, anchors)
    save_file({k: v.contiguous() for k, v in found.items()}, args.out)
    print({k: tuple(v.shape) for k, v in found.items()})


if __name__ == "__main__":
    main()
