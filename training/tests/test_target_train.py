"""A toy run of the target's training: packing, resuming, weights that load again."""

from pathlib import Path

import numpy as np
import pytest
import torch

from pleach_training.parallel import Company
from pleach_training.target.config import TargetConfig
from pleach_training.target.data import AVOID, LEARN, PADDING, PROMPT, Documents, Mixture, cut, fill, plan_rows
from pleach_training.target.loops import marked
from pleach_training.target.model import Target, make_layout
from pleach_training.target.prefetch import DEPTH, Prefetcher
from pleach_training.target.train import TrainConfig, load_weights, train, weighted_loss

SHAPE = TargetConfig(
    vocab_size=48,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=4,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    linear_num_key_heads=2,
    linear_num_value_heads=2,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
)


def counting(num: int, seed: int) -> Documents:
    """Documents that count upwards modulo 40: half prompt, half learned."""
    rng = np.random.default_rng(seed)
    parts = []
    for _ in range(num):
        length = int(rng.integers(8, 40))
        ids = ((np.arange(length) + rng.integers(40)) % 40 + 1).astype(np.uint16)
        role = np.where(np.arange(length) < length // 2, PROMPT, LEARN).astype(np.uint8)
        parts.append((ids, role))
    return Documents.join(parts)


def test_rows_hold_every_document_once() -> None:
    documents = counting(100, 0)
    rows = fill(documents, plan_rows(cut(documents, 64, np.random.default_rng(0)), 64, num_open=4), 64, 0)
    assert int((rows.role != PADDING).sum()) == len(documents.ids)
    assert int((rows.ids > 0).sum()) == len(documents.ids)
    assert int(rows.starts.sum()) >= 100


def test_a_restored_mixture_draws_the_same_rows() -> None:
    groups = {"a": counting(30, 1), "b": counting(30, 2)}
    shares = {"a": 0.7, "b": 0.3}
    first = Mixture(groups, 64, 0, seed=3)
    for _ in range(7):
        first.draw(4, shares)
    second = Mixture(groups, 64, 0, seed=3)
    second.restore(first.state())
    for _ in range(5):
        np.testing.assert_array_equal(first.draw(4, shares).ids, second.draw(4, shares).ids)


def test_a_packing_process_draws_what_the_mixture_draws() -> None:
    groups = {"a": counting(30, 1), "b": counting(30, 2)}
    shares = ({"a": 0.7, "b": 0.3}, {"b": 1.0})
    alone = Mixture(groups, 64, 0, seed=3)
    batches = Prefetcher(Mixture(groups, 64, 0, seed=3), 4, Company(1, 2), shares, False)
    try:
        for (rows, state), _ in zip(batches, range(5), strict=False):
            np.testing.assert_array_equal(rows.ids, alone.draw(4, shares[0]).part(1, 2).ids)
            assert state == alone.state()
        batches.decay()
        states = [state for (_, state), _ in zip(batches, range(2 * DEPTH + 8), strict=False)]
        assert states[-1]["cursor"]["a"] == states[-2]["cursor"]["a"]
    finally:
        batches.close()


def test_a_dead_packing_process_is_an_error() -> None:
    batches = Prefetcher(Mixture({}, 64, 0, seed=0), 4, Company(), ({}, {}), False)
    with pytest.raises(RuntimeError, match="the process that packs rows ended with exit code 1"):
        next(iter(batches))


def test_what_a_loop_repeats_is_marked() -> None:
    ids = np.array([40, 41, 9, 8, 7, *[1, 2, 3, 4] * 30])
    found = marked(ids, 2, longest=10)
    assert found is not None
    kept, role = found
    assert kept.tolist() == [40, 41, 9, 8, 7, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
    assert role.tolist() == [PROMPT] * 9 + [AVOID] * 10
    assert marked(np.arange(100), 2, longest=10) is None


def test_a_weight_below_zero_asks_for_unlikelihood() -> None:
    torch.manual_seed(0)
    hidden, embedding = torch.randn(6, 8), torch.randn(10, 8)
    labels, weight = torch.tensor([0, 1, 2, 3, 4, 5]), torch.tensor([1.0, 0.5, 0.0, -1.0, -0.5, 0.0])
    p = (hidden @ embedding.T).softmax(-1)[torch.arange(6), labels]
    wanted = (-p[0].log() - 0.5 * p[1].log() - (1 - p[3]).log() - 0.5 * (1 - p[4]).log()) / 3
    total = weight.abs().sum()
    torch.testing.assert_close(weighted_loss(hidden, embedding, labels, weight, total), wanted, atol=1e-3, rtol=1e-3)
    # A certain token still has a gradient, and no infinite loss.
    sure = (100 * embedding[:1] / embedding[0].norm()).requires_grad_()
    loss = weighted_loss(sure, embedding, torch.tensor([0]), torch.tensor([-1.0]), torch.tensor(1.0))
    loss.backward()
    assert torch.isfinite(loss) and sure.grad is not None and torch.isfinite(sure.grad).all()


def test_a_loop_is_unlearned(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    ids = np.array([41, *[7, 8] * 30])
    found = marked(ids, 1, longest=24)
    assert found is not None
    loops, kept = Documents.join([found] * 4), counting(200, 1)

    def certainty(model: Target) -> float:
        starts = torch.arange(len(ids)).unsqueeze(0) == 0
        hidden, _ = model(torch.from_numpy(ids).unsqueeze(0), make_layout(SHAPE, starts), False)
        p = model.logits(hidden)[0, :-1].softmax(-1).gather(-1, torch.from_numpy(ids[1:, None]))
        return float(p[3:24].detach().mean())

    config = TrainConfig(steps=40, rows=4, time=64, lr=1e-2, warmup=5, decay_share=1.0)
    learned = Documents(loops.ids, np.where(loops.role == AVOID, LEARN, loops.role).astype(np.uint8), loops.offsets)
    looping = train(SHAPE, config, {"loops": learned, "python": kept}, {}, tmp_path / "a", "cpu")
    before = certainty(looping.model)
    mended = train(SHAPE, config, {"loops": loops, "python": kept}, {}, tmp_path / "b", "cpu", tmp_path / "a/weights")
    assert before > 0.3 and certainty(mended.model) < 0.1


def test_training_learns_and_resumes(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    groups, validation = {"python": counting(200, 1)}, {"python": counting(20, 2)}
    config = TrainConfig(steps=60, rows=4, time=64, lr=1e-2, warmup=5, checkpoint_minutes=0.02, validation_minutes=0.02)
    trainer = train(SHAPE, config, groups, validation, tmp_path, "cpu")
    assert trainer.validate(validation, 0)["python"] < 3.0  # an untrained model has ln 48 = 3.9
    assert list((tmp_path / "stable").glob("*.safetensors"))

    again = Target(SHAPE)
    load_weights(again, tmp_path / "weights")
    resumed = train(SHAPE, config, groups, validation, tmp_path, "cpu")
    for (name, old), new in zip(trainer.model.named_parameters(), resumed.model.parameters(), strict=True):
        torch.testing.assert_close(old, new, msg=name)
