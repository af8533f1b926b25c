"""Batched generation gives what the library's own loop gives, and goes on where it stopped."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3_5ForCausalLM, Qwen3_5TextConfig, Qwen3Config, Qwen3ForCausalLM

from pleach_training.drafter.data import Replies
from pleach_training.generation import Job, generate
from pleach_training.replies import Prompt, make_decoder, run, writer
from pleach_training.target.decode import BundledDecoder
from pleach_training.target.model import Target, make_layout

from .test_target_model import TINY


def llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.3,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config)


def qwen3() -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        initializer_range=0.3,
        eos_token_id=None,
    )
    return Qwen3ForCausalLM(config)


def hybrid() -> Qwen3_5ForCausalLM:
    return Qwen3_5ForCausalLM(Qwen3_5TextConfig(**{**TINY.hugging_face(), "initializer_range": 0.3}))


def prompts() -> list[Prompt]:
    lengths = (3, 9, 5, 7)
    return [Prompt(tuple(range(n + 1, 2 * n + 1)), "train", 0.0) for n in lengths]


@pytest.mark.parametrize("make", [llama, qwen3, hybrid])
def test_replies_equal_single_greedy_ones(make) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(1)
    model = make().float().eval()
    alone = []
    for prompt in prompts():
        ids = torch.tensor([prompt.ids])
        out = model.generate(ids, max_new_tokens=40, do_sample=False, eos_token_id=None, pad_token_id=0)
        alone.append(out[0, len(prompt.ids) :].tolist())
    stop = alone[1][25]
    wanted = [reply[: reply.index(stop) + 1] if stop in reply else reply for reply in alone]
    assert {len(reply) for reply in wanted} != {40}
    assert (make_decoder(model, 1, 8) is None) == (make is hybrid)
    assert writer(model, (stop,), rows=3, max_new=40)(prompts(), 0) == wanted


def test_a_row_that_ends_takes_the_next_prompt() -> None:
    torch.manual_seed(1)
    model = Target(TINY).eval()
    jobs = [Job(prompt.ids, 0.0) for prompt in prompts()]
    one_row, many = BundledDecoder(model, 1, 30), BundledDecoder(model, 4, 30)
    assert generate(one_row, jobs, (0,), 9, seed=0) == generate(many, jobs, (0,), 9, seed=1)


def test_draws_follow_the_distribution() -> None:
    torch.manual_seed(1)
    model = Target(TINY).eval()
    jobs = [Job((7, 8), 1.0)] * 1000
    drawn = [reply[0] for reply in generate(BundledDecoder(model, 500, 4), jobs, (), 1, seed=0)]
    ids = torch.tensor([[7, 8]])
    starts = torch.tensor([[True, False]])
    with torch.no_grad():
        wanted = model.logits(model(ids, make_layout(TINY, starts))[0])[0, -1].softmax(-1)
    found = torch.bincount(torch.tensor(drawn), minlength=TINY.vocab_size) / len(drawn)
    assert (found - wanted).abs().max() < 0.04


def test_a_stopped_run_goes_on(tmp_path: Path) -> None:
    torch.manual_seed(1)
    write = writer(llama().eval(), (0,), rows=2, max_new=5)
    some = run(write, prompts(), (0,), tmp_path, size=2, seconds=60, wide=False)
    (tmp_path / "part-00001.npz").unlink()
    again = run(write, prompts(), (0,), tmp_path, size=2, seconds=60, wide=False)
    assert some.ids.tolist() == again.ids.tolist()
    assert len(Replies.load(tmp_path / "replies.npz").plen) == 4
