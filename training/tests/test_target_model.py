"""Our training network is Hugging Face's `Qwen3_5ForCausalLM`, row by row."""

import math

import pytest
import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from pleach_training.generation import Job, generate
from pleach_training.target.config import TargetConfig
from pleach_training.target.decode import BundledDecoder
from pleach_training.target.delta_kernels import CHUNK, chunk_gradients
from pleach_training.target.delta_rule import chunked, l2_normalize
from pleach_training.target.model import Target, make_layout

TINY = TargetConfig(
    vocab_size=320,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
)


def randomized(config: TargetConfig) -> Target:
    torch.manual_seed(0)
    model = Target(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def reference(model: Target) -> Qwen3_5ForCausalLM:
    config = Qwen3_5TextConfig(**model.config.hugging_face())
    config._attn_implementation = "eager"
    hf = Qwen3_5ForCausalLM(config).float().eval()
    state = {k: v for k, v in model.state_dict().items() if not k.startswith("mtp.")}
    missing, unexpected = hf.load_state_dict(state, strict=False)
    assert unexpected == [] and missing in ([], ["lm_head.weight"])
    hf.tie_weights()
    return hf


def test_logits_match_hugging_face() -> None:
    model = randomized(TINY)
    ids = torch.randint(0, TINY.vocab_size, (2, 150))
    starts = torch.zeros_like(ids, dtype=torch.bool)
    starts[:, 0] = True
    with torch.no_grad():
        ours = model.logits(model(ids, make_layout(TINY, starts))[0])
        theirs = reference(model)(ids).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-4)


def test_a_packed_document_does_not_see_the_one_before() -> None:
    model = randomized(TINY)
    ids = torch.randint(0, TINY.vocab_size, (1, 140))
    edge = 77
    starts = torch.zeros_like(ids, dtype=torch.bool)
    starts[:, [0, edge]] = True
    alone = torch.zeros(1, 140 - edge, dtype=torch.bool)
    alone[:, 0] = True
    with torch.no_grad():
        packed, packed_mtp = model(ids, make_layout(TINY, starts))
        single, single_mtp = model(ids[:, edge:], make_layout(TINY, alone))
    torch.testing.assert_close(packed[:, edge:], single, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(packed_mtp[:, edge:-1], single_mtp[:, :-1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("time", [1, 63, 64, 130])
def test_chunks_equal_the_recurrence(time: int) -> None:
    torch.manual_seed(time)
    q, k = (l2_normalize(torch.randn(2, time, 3, 8, dtype=torch.float64)) for _ in range(2))
    v = torch.randn(2, time, 3, 4, dtype=torch.float64)
    g = -torch.rand(2, time, 3, dtype=torch.float64) * 3
    beta = torch.rand(2, time, 3, dtype=torch.float64)
    torch.testing.assert_close(chunked(q, k, v, g, beta), recurrence(q, k, v, g, beta))


def test_chunk_gradients_are_those_of_autograd() -> None:
    torch.manual_seed(0)
    batch, chunks, heads, dim, time = 2, 2, 3, 4, 128

    def rows() -> torch.Tensor:
        return torch.randn(batch, time, heads, dim, dtype=torch.float64, requires_grad=True)

    q, k, v, w, do = (rows() for _ in range(5))
    g = -torch.rand(batch, time, heads, dtype=torch.float64)
    g = g.unflatten(1, (chunks, CHUNK)).cumsum(2).flatten(1, 2).requires_grad_()
    h, dh = (torch.randn(batch, chunks, heads, dim, dim, dtype=torch.float64) for _ in range(2))
    tile = lambda x: x.unflatten(1, (chunks, CHUNK)).transpose(2, 3)  # noqa: E731
    total = tile(g.unsqueeze(-1))
    decay = (total - total.mT).exp().tril()
    new = tile(v) - tile(w) @ h
    new.retain_grad()
    within = (tile(q) @ tile(k).mT * decay) * 0.5
    out = total.exp() * tile(q) @ h * 0.5 + within @ new
    to_end = (total[..., -1:, :] - total).exp() * tile(k)
    state = total[..., -1:, :].exp() * h + to_end.mT @ new
    ((out * tile(do)).sum() + (state * dh).sum()).backward()
    dv = new.grad.transpose(2, 3).flatten(1, 2)
    values = new.detach().transpose(2, 3).flatten(1, 2)
    log2 = (g / math.log(2)).detach()
    got = chunk_gradients(q, k, values, do, h, dh, w, log2, dv, 0.5)
    for ours, truth in zip(got, (q.grad, k.grad, w.grad, g.grad), strict=True):
        torch.testing.assert_close(ours.double(), truth, rtol=1e-4, atol=1e-4)


def recurrence(q, k, v, g, beta):  # type: ignore[no-untyped-def]
    state = torch.zeros(*q.shape[:1], q.shape[2], q.shape[3], v.shape[3], dtype=q.dtype)
    outputs = []
    for t in range(q.shape[1]):
        state = g[:, t].exp()[..., None, None] * state
        read = torch.einsum("bhkv,bhk->bhv", state, k[:, t])
        write = beta[:, t, :, None] * (v[:, t] - read)
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], write)
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]) * q.shape[-1] ** -0.5)
    return torch.stack(outputs, 1)


def test_the_decoder_writes_what_the_library_writes() -> None:
    model = randomized(TINY)
    hf = reference(model)
    prompts = [[5, 9, 11], [3, 1, 4, 1, 5, 9, 2, 6], [200, 7, 30, 31, 32]]
    wanted = []
    for prompt in prompts:
        out = hf.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0)
        wanted.append(out[0, len(prompt) :].tolist())
    stop = wanted[0][10]
    wanted = [reply[: reply.index(stop) + 1] if stop in reply else reply for reply in wanted]
    decoder = BundledDecoder(model, rows=2, capacity=40)
    jobs = [Job(tuple(prompt), 0.0) for prompt in prompts]
    assert generate(decoder, jobs, (stop,), 24, seed=0) == wanted
