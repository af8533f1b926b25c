"""Two processes that share a batch make the update of one process that has it all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from pleach_training.parallel import Company
from pleach_training.target.data import Mixture
from pleach_training.target.train import TrainConfig, Trainer, to_batch, train

from .test_target_train import SHAPE, counting

CONFIG = TrainConfig(steps=12, rows=4, time=64, lr=1e-2, warmup=5)


def gradients(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Those of the first batch, averaged over the company."""
    rows = Mixture({"python": counting(200, 1)}, 64, 0, 0).draw(4, {"python": 1.0})
    company = trainer.company
    batch = to_batch(rows.part(company.rank, company.size), 0.25, "cpu")
    main, ahead = trainer.losses(batch, True, company)
    assert ahead is not None
    (main + 0.2 * ahead).backward()
    company.average_gradients(trainer.model.parameters())
    found = {name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None}
    trainer.model.zero_grad()
    return found


def work(rank: int, size: int, folder: Path) -> None:
    """One process: gradients of the first batch, then a short run."""
    torch.set_num_threads(1)
    if size > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    company = Company(rank, size)
    found = gradients(Trainer(SHAPE, CONFIG, "cpu", company))
    trained = train(SHAPE, CONFIG, {"python": counting(200, 1)}, {}, folder / f"run{size}", "cpu", None, company)
    torch.save((found, trained.model.state_dict()), folder / f"{size}-{rank}.pt")
    if size > 1:
        dist.destroy_process_group()


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    work(0, 1, tmp_path)
    mp.spawn(work, args=(2, tmp_path), nprocs=2)
    (alone, end), (first, end_first), (second, end_second) = (
        torch.load(tmp_path / name) for name in ("1-0.pt", "2-0.pt", "2-1.pt")
    )
    assert alone.keys() == first.keys()
    for name in alone:
        torch.testing.assert_close(first[name], alone[name], rtol=1e-4, atol=1e-6, msg=name)
        assert torch.equal(first[name], second[name]), name
    for name in end:
        assert torch.equal(end_first[name], end_second[name]), name
        # Muon works in bf16, so sums in another order show in the third digit of an update.
        torch.testing.assert_close(end_first[name], end[name], rtol=0, atol=2e-2, msg=name)
    assert not np.isnan(end["model.norm.weight"].numpy()).any()
