"""Tree ranks against an exhaustive search, and replayed rounds against a hand count."""

import itertools
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from pleach_training.drafter.data import Parts, Store
from pleach_training.drafter.train import train
from pleach_training.evaluate.answers import parses, python_of
from pleach_training.evaluate.cost import tree_macs, tree_ms
from pleach_training.evaluate.loop import plain, speculate
from pleach_training.evaluate.measure import tokens_per_pass
from pleach_training.evaluate.replay import Tally, depth_within
from pleach_training.evaluate.rounds import all_rounds
from pleach_training.evaluate.tree import marginal_ranks
from pleach_training.evaluate.weaver_tree import Tables
from pleach_training.weaver.model import Weaver, WeaverConfig
from pleach_training.weaver.parent import ParentScorer

from . import toy


def test_ranks_are_those_of_the_sorted_products() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        rows = np.sort(np.log(rng.dirichlet(np.ones(4), size=3)), 1)[:, ::-1]
        truth = rng.integers(-1, 4, size=3).tolist()
        nodes = {}
        for depth in (1, 2, 3):
            for path in itertools.product(range(4), repeat=depth):
                nodes[path] = sum(rows[d, r] for d, r in enumerate(path))
        order = sorted(nodes, key=lambda path: (-nodes[path], path))
        wanted = []
        for depth in (1, 2, 3):
            if truth[depth - 1] < 0:
                break
            wanted.append(order.index(tuple(truth[:depth])) + 1)
        got = marginal_ranks(rows.tolist(), truth, len(order))
        assert got == wanted
        assert marginal_ranks(rows.tolist(), truth, 10) == list(itertools.takewhile(lambda r: r <= 10, wanted))


def test_a_reply_is_replayed_round_by_round() -> None:
    tally = Tally()
    tally.add(np.array([2, 9, 9, 0, 9, 9]))  # 0 -> 3 (two drafted and one), 3 -> 4, 4 -> 5
    assert (tally.tokens, tally.passes) == (5, 3)


def test_depth_counts_nodes_inside_the_budget() -> None:
    ranks = np.array([[1, 3, 8], [2, 1 << 20, 1 << 20]])
    assert depth_within(ranks, 4).tolist() == [2, 1]
    assert depth_within(ranks, 2).tolist() == [1, 0]


def test_replayed_rounds_are_those_of_the_real_loop() -> None:
    trainer = toy.trainer(steps=40, kl_share=1.0)
    frozen = trainer.features
    prompts = [[1, 2, 3, 4, 5], [7, 10, 13, 16, 19]]
    answers = [plain(frozen, prompt, 30) for prompt in prompts]
    written = toy.as_replies(prompts, [a.ids for a in answers])
    parts = Parts([written], lambda part: Store.build(part, frozen, toy.TAPS, "cpu"))
    store, held_out = parts.build(written), toy.store(4, 3)
    train(trainer, parts, held_out, Path(tempfile.mkdtemp()))
    rounds = all_rounds(trainer, store, None, pool_size=16, width=4)
    for budget in (4, 8):
        tokens = passes = 0
        for prompt, answer in zip(prompts, answers, strict=True):
            looped = speculate(frozen, trainer, prompt, 30, budget)
            assert looped.ids == answer.ids
            tokens, passes = tokens + len(looped.ids) - 1, passes + looped.passes
        assert passes < tokens
        assert tokens_per_pass(written, rounds)[f"ddtree/{budget}"] == round(tokens / passes, 3)


def test_drafts_that_know_the_noise_gain_more() -> None:
    trainer = toy.trainer(steps=40, kl_share=1.0)
    train(trainer, toy.parts(60, 1), toy.store(4, 3), Path(tempfile.mkdtemp()))
    model, heat = trainer.features.model, 0.7
    torch.manual_seed(0)
    prompts = [[7 * i % 60, (7 * i + 1) % 60, (7 * i + 2) % 60] for i in range(12)]
    drawn = model.generate(torch.tensor(prompts), max_new_tokens=24, do_sample=True, temperature=heat, top_k=0)
    sampled = toy.as_replies(prompts, drawn[:, 3:].tolist())
    store = Store.build(sampled, trainer.features, toy.TAPS, "cpu")
    known, blind = (all_rounds(trainer, store, None, 16, 4, t) for t in (heat, 0.0))
    assert tokens_per_pass(sampled, known)["ddtree/8"] > tokens_per_pass(sampled, blind)["ddtree/8"]
    assert np.all(np.diff(known.log_probs, axis=-1) <= 0)


def test_python_is_found_in_answers() -> None:
    assert python_of("Here it is:\n\n```python\ndef f():\n    return 1\n```\n\nDone.") == "def f():\n    return 1\n"
    assert python_of("def f(): return 1") == "def f(): return 1"
    assert python_of("I do not know.") is None
    assert parses("def f(): return 1") and not parses("def f( return 1")


def test_the_cost_of_a_tree_counts_its_products() -> None:
    path = WeaverConfig(64, 64, d_rank=32, num_layers=1, num_heads=2, mlp_dim=32, max_depth=3, candidate_pool_size=8)
    block = 32 * 3 * 32 + 32 * 32 + 32 * 64 + 32 * 32
    # A root and two nodes at each of two depths; four rows of the prefix.
    assert tree_macs(Weaver(path), 2) == 5 * (64 * 32 + block + 32 * 64 + 8 * 64) + 4 * (64 * 32 + block)
    assert tree_macs(ParentScorer(replace(path, num_layers=0)), 2) == 5 * (128 * 64 + 32 * 64 + 8 * 64)
    tables = Tables(torch.randn(50, 64), torch.randn(50, 64), torch.arange(50))
    assert tree_ms(Weaver(path), tables, 2, torch.Generator().manual_seed(0)) > 0
