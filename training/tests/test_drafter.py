"""The drafter sees what it may see, learns, and resumes."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from pleach_training.drafter.config import default_taps
from pleach_training.drafter.data import (
    FIELDS,
    Parts,
    Replies,
    Store,
    loop_period,
    pack_rows,
    sample_anchors,
    take_anchors,
)
from pleach_training.drafter.features import BundledFeatures, HuggingFaceFeatures
from pleach_training.drafter.train import load_drafter, split_replies, train
from pleach_training.runs import Clock

from . import toy
from .test_target_model import TINY, randomized, reference


def test_default_taps_are_the_published_ones() -> None:
    assert default_taps(36, 5) == (1, 9, 17, 25, 33)
    assert default_taps(32, 5) == (1, 8, 15, 22, 29)
    assert default_taps(30, 4) == (1, 10, 18, 27)


def test_loops_are_told_from_text() -> None:
    assert loop_period(np.array([5, 6, 7] * 30)) == 3
    assert loop_period(np.arange(90)) is None
    assert loop_period(np.array([5, 6, 7] * 3)) is None


def test_a_block_does_not_see_its_anchors_features_or_later_ones() -> None:
    trainer, store = toy.trainer(), toy.store(6, 1)
    index, begins = (torch.from_numpy(x) for x in pack_rows(store, 64, None))
    batch = sample_anchors(store, index[:1], begins[:1], 1)
    with torch.no_grad():
        before = trainer.rows(trainer.block(store, batch))
        at = int(batch.flat)
        taps = store.taps.clone()
        taps[at:] += 1.0
        after = trainer.rows(trainer.block(replace(store, taps=taps), batch))
        taps[at - 1] += 1.0
        changed = trainer.rows(trainer.block(replace(store, taps=taps), batch))
    torch.testing.assert_close(before, after)
    assert (before - changed).abs().max() > 1e-4


def test_a_block_does_not_depend_on_the_company_in_its_row() -> None:
    trainer, store = toy.trainer(), toy.store(6, 1)
    index, begins = (torch.from_numpy(x) for x in pack_rows(store, 128, None))
    left = torch.where(index >= 0, store.left[index.clamp(min=0)], 0)
    places = left[0].nonzero().flatten()
    with torch.no_grad():
        together = trainer.rows(trainer.block(store, take_anchors(index[:1], begins[:1], left[:1], places.unsqueeze(0))))
        for i in (0, len(places) // 2, len(places) - 1):
            alone = take_anchors(index[:1], begins[:1], left[:1], places[i].view(1, 1))
            torch.testing.assert_close(trainer.rows(trainer.block(store, alone))[0], together[i])


def test_training_learns_and_resumes(tmp_path: Path) -> None:
    trainer, parts, held = toy.trainer(steps=200, kl_share=0.0), toy.parts(200, 1), toy.store(12, 2)
    train(trainer, parts, held, tmp_path)
    assert trainer.accuracy(held)["rows"][0] > 0.5  # one in sixty by chance
    again, draft_ids = load_drafter(tmp_path, "cpu")
    assert draft_ids is not None and len(draft_ids) == 60
    resumed = toy.trainer(steps=200, kl_share=0.0)
    train(resumed, parts, held, tmp_path)
    for old, new in zip(trainer.model.parameters(), resumed.model.parameters(), strict=True):
        torch.testing.assert_close(old, new)
    for old, new in zip(trainer.model.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(old, new, rtol=1e-2, atol=1e-2)


def test_parts_hold_every_reply_once_and_follow_each_other(tmp_path: Path) -> None:
    replies, built, stores = toy.replies(40, 1), [], []

    def build(part: Replies) -> Store:
        assert all(len(store.taps) == 0 for store in stores), "the device holds one"
        built.append(part)
        stores.append(Store.build(part, toy.features(), toy.TAPS, "cpu"))
        return stores[-1]

    most = int((replies.plen + replies.glen).sum()) // 3
    parts = Parts.of(replies, most, 0, build)
    assert len(parts.parts) > 3
    assert all(len(part.ids) <= most for part in parts.parts)
    pieces = [part.ids[a:b].tobytes() for part in (replies, *parts.parts) for a, b in pairwise(part.offsets)]
    assert sorted(pieces[:40]) == sorted(pieces[40:])
    train(toy.trainer(steps=20), parts, toy.store(4, 2), tmp_path)
    assert [part is of for part, of in zip(built, parts.parts, strict=True)] == [True] * len(parts.parts)
    assert len(Parts.of(replies, 10 * most, 0, build).parts) == 1
    with pytest.raises(ValueError, match="raise --store-gb"):
        Parts.of(replies, 40, 0, build)


class Steps:
    """A run of so many steps of which some are made."""

    def __init__(self, step: int, of: int) -> None:
        self.step, self.of, self.clock = step, of, Clock(0.0, steps=of)

    progress = property(lambda self: self.step / self.of)
    is_over = property(lambda self: self.step >= self.of)


def test_a_run_goes_on_with_the_batches_that_were_next() -> None:
    parts = toy.parts(30, 1)

    def batches(begin: int) -> list[torch.Tensor]:
        run, found = Steps(begin, 24), []
        for _store, index, _begins in parts.batches(64, 4, 0, "cpu", run):  # type: ignore[arg-type]
            found.append(index)
            run.step += 1
        return found

    whole, rest = batches(0), batches(10)
    assert (len(whole), len(rest)) == (24, 14)
    assert all(a.equal(b) for a, b in zip(whole[10:], rest, strict=True))


def test_taps_of_the_bundled_network_are_the_librarys_hidden_states() -> None:
    model = randomized(TINY)
    ids = torch.randint(0, TINY.vocab_size, (2, 40))
    ours = BundledFeatures(model).run(ids, (0, 2))
    theirs = HuggingFaceFeatures(reference(model)).run(ids, (0, 2))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-4)


def test_replies_to_a_prompt_are_held_out_together_whatever_else_is_given() -> None:
    some, more = toy.replies(300, 0), toy.replies(300, 1)
    twice = Replies(**{name: np.concatenate([getattr(r, name) for r in (some, more, some)]) for name in FIELDS})
    alone, together = some.prompt_shares(0), twice.prompt_shares(0)
    assert (together[:300] == alone).all() and (together[600:] == alone).all()
    assert 0.1 < float(np.mean(together < 0.3)) < 0.5
    assert (some.prompt_shares(1) != alone).any()
    kept, held = split_replies(twice, 0, share=0.3)
    prompts = [{tuple(part.ids[at : at + 5]) for at in part.offsets[:-1]} for part in (kept, held)]
    assert prompts[0].isdisjoint(prompts[1]) and len(held.plen) > 0
    assert len(split_replies(some, 0, share=0.0)[1].plen) > 0
