"""A toy run of the target's training: packing, resuming, weights that load again."""

from pathlib import Path

import numpy as np
import torch

from pleach_training.target.config import TargetConfig
from pleach_training.target.data import LEARN, PADDING, PROMPT, Documents, Mixture, cut, fill, plan_rows
from pleach_training.target.model import Target
from pleach_training.target.train import TrainConfig, load_weights, train

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
