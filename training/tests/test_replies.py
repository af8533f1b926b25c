"""Batched generation gives what the library's own loop gives, and goes on where it stopped."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3_5ForCausalLM, Qwen3_5TextConfig

from pleach_training.drafter.data import Replies
from pleach_training.replies import Prompt, generate, run, write_with
from pleach_training.target.model import Target

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


def hybrid() -> Qwen3_5ForCausalLM:
    return Qwen3_5ForCausalLM(Qwen3_5TextConfig(**{**TINY.hugging_face(), "initializer_range": 0.3}))


def prompts() -> list[Prompt]:
    lengths = (3, 9, 5, 7)
    return [Prompt(tuple(range(n + 1, 2 * n + 1)), "train", 0.0) for n in lengths]


@pytest.mark.parametrize("make", [llama, hybrid])
def test_replies_equal_single_greedy_ones(make) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(1)
    model = make().float().eval()
    alone = []
    for prompt in prompts():
        ids = torch.tensor([prompt.ids])
        out = model.generate(ids, max_new_tokens=70, do_sample=False, eos_token_id=None, pad_token_id=0)
        alone.append(out[0, len(prompt.ids) :].tolist())
    stop = alone[1][40]
    wanted = [reply[: reply.index(stop) + 1] if stop in reply else reply for reply in alone]
    assert {len(reply) for reply in wanted} != {70}
    got = generate(model, prompts(), (stop,), 70, torch.Generator().manual_seed(0))
    assert got == wanted


def test_the_bundled_model_has_its_own_step() -> None:
    torch.manual_seed(1)
    model = Target(TINY).eval()
    got = write_with(model, (0,), max_new=6)(prompts(), 0)
    assert [len(reply) for reply in got] == [6, 6, 6, 6] or any(reply[-1] == 0 for reply in got)
    assert got == write_with(model, (0,), max_new=6)(prompts(), 1)


def test_a_stopped_run_goes_on(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = llama().eval()
    write = write_with(model, (0,), max_new=5)
    some = run(write, prompts(), (0,), tmp_path, size=2, seconds=60, wide=False)
    (tmp_path / "batch-00001.npz").unlink()
    again = run(write, prompts(), (0,), tmp_path, size=2, seconds=60, wide=False)
    assert some.ids.tolist() == again.ids.tolist()
    assert len(Replies.load(tmp_path / "replies.npz").plen) == 4
