"""The Weaver starts from the drafter's scores, sees one path only, and learns."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pleach_training.drafter.train import train as train_drafter
from pleach_training.weaver.model import Weaver, WeaverConfig
from pleach_training.weaver.parent import ParentScorer
from pleach_training.weaver.train import WeaverTrainConfig, WeaverTrainer, load_weaver, train

from . import toy

SHAPE = WeaverConfig(
    d_model=toy.HIDDEN,
    d_embed=toy.HIDDEN,
    d_rank=32,
    num_layers=2,
    num_heads=2,
    mlp_dim=48,
    max_depth=3,
    candidate_pool_size=8,
)


def test_a_new_weaver_scores_as_the_drafter_does() -> None:
    model = Weaver(SHAPE)
    assert model(torch.randn(2, 4, toy.HIDDEN), torch.randn(2, 3, toy.HIDDEN)).abs().max() == 0


def test_nodes_of_a_tree_equal_their_paths() -> None:
    torch.manual_seed(0)
    model = Weaver(SHAPE)
    torch.nn.init.normal_(model.lm_head_query_in.weight)
    prefix, tokens = torch.randn(1, 4, toy.HIDDEN), torch.randn(5, toy.HIDDEN)
    # Node 0 is the root, 1 and 2 are its children, 3 is a child of 2 and 4 a child of 1.
    root, level1, level2 = tokens[None, :1], tokens[None, 1:3], tokens[None, 3:]
    with torch.no_grad():
        keys = model.prefix_keys(prefix)
        query0, own0 = model.nodes(root, 0, keys, None)
        keys = extended(keys, own0)
        query1, own1 = model.nodes(level1, 1, keys, torch.tensor([[[0], [0]]]))
        query2, _ = model.nodes(level2, 2, extended(keys, own1), torch.tensor([[[0, 2], [0, 1]]]))
        left = model(prefix, tokens[None, [0, 2, 3]])
        right = model(prefix, tokens[None, [0, 1, 4]])
    torch.testing.assert_close(query0[0, 0], left[0, 0])
    torch.testing.assert_close(query1[0], torch.stack([right[0, 1], left[0, 1]]))
    torch.testing.assert_close(query2[0], torch.stack([left[0, 2], right[0, 2]]))


def test_a_parent_scorer_gives_nodes_what_it_gives_their_paths() -> None:
    torch.manual_seed(0)
    model = ParentScorer(SHAPE)
    prefix, tokens = torch.randn(1, 4, toy.HIDDEN), torch.randn(1, 3, toy.HIDDEN)
    assert model(prefix, tokens).abs().max() == 0
    torch.nn.init.normal_(model.down_proj.weight)
    with torch.no_grad():
        path, keys = model(prefix, tokens), model.prefix_keys(prefix)
        for depth in range(3):
            query, own = model.nodes(tokens[:, depth : depth + 1], depth, keys, None)
            torch.testing.assert_close(query[:, 0], path[:, depth])
            keys = extended(keys, own)


def extended(keys, own):  # type: ignore[no-untyped-def]
    return [tuple(torch.cat(p, 2) for p in zip(a, b, strict=True)) for a, b in zip(keys, own, strict=True)]


@pytest.mark.parametrize("shape", [SHAPE, replace(SHAPE, num_layers=0)])
def test_training_learns_and_resumes(tmp_path: Path, shape: WeaverConfig) -> None:
    draft, parts, held = toy.trainer(steps=60), toy.parts(60, 1), toy.store(12, 2)
    train_drafter(draft, parts, held, tmp_path / "drafter")
    draft.model.requires_grad_(False)
    config = WeaverTrainConfig(steps=60, rows=4, context=64, blocks=8, lr=1e-2, warmup=5, checkpoint_minutes=0.02)
    trainer = WeaverTrainer(shape, config, draft)
    before = trainer.accuracy(held)
    train(trainer, parts, held, tmp_path / "weaver")
    assert trainer.accuracy(held)["loss"] < before["loss"]
    load_weaver(tmp_path / "weaver", "cpu")
    resumed = WeaverTrainer(shape, config, draft)
    train(resumed, parts, held, tmp_path / "weaver")
    for old, new in zip(trainer.model.parameters(), resumed.model.parameters(), strict=True):
        torch.testing.assert_close(old, new)
