"""Files have the names and shapes that other engines read."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pleach_training.drafter.targets import open_bundled, open_features, open_model
from pleach_training.export import (
    export_drafter,
    export_mirai_weaver,
    export_target,
    export_weaver,
    mirai_state,
    quantize_state,
    unpack_state,
)
from pleach_training.gguf import load_llama
from pleach_training.quantize import dequantize_affine, quantize_affine
from pleach_training.runs import save_shards
from pleach_training.target.corpus import Conversation, Message
from pleach_training.target.data import LEARN, chat_pieces, tokenize
from pleach_training.target.model import Target, make_layout
from pleach_training.target.tokenizer import save_tokenizer, train_tokenizer
from pleach_training.weaver.model import Weaver
from pleach_training.weaver.train import WeaverTrainConfig, WeaverTrainer

from . import toy
from .test_target_model import TINY, randomized
from .test_weaver import SHAPE

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


def test_drafter_has_the_published_layout(tmp_path: Path) -> None:
    toy.trainer().save_weights(tmp_path / "run")
    export_drafter(tmp_path / "run", tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["architectures"] == ["DFlashDraftModel"]
    assert config["dflash_config"] == {"target_layer_ids": [1, 2], "mask_token_id": toy.MASK_ID}
    tensors = load_file(tmp_path / "out/model.safetensors")
    assert tensors["fc.weight"].shape == (32, 64)
    assert tensors["layers.1.self_attn.q_norm.weight"].shape == (16,)
    assert tensors["draft_to_target"].tolist() == list(range(60))
    per_layer = 11
    assert len(tensors) == 3 + 2 * per_layer + 1


def test_weaver_has_both_layouts(tmp_path: Path) -> None:
    WeaverTrainer(SHAPE, WeaverTrainConfig(), toy.trainer()).save_weights(tmp_path / "run")
    export_weaver(tmp_path / "run", tmp_path / "plain")
    config = json.loads((tmp_path / "plain/weaver.json").read_text())
    assert (config["K"], config["candidate_pool_size"], config["encoder_mode"]) == (3, 8, 3)
    export_mirai_weaver(tmp_path / "run", tmp_path / "mirai")
    tensors = load_file(tmp_path / "mirai/model.safetensors")
    assert tensors["speculator.weaver.layers.1.pre_attention_norm.scales"].shape == (32,)
    assert tensors["speculator.weaver.query_projection.weights"].shape == (32, 32)


def test_mirai_puts_up_rows_first() -> None:
    state = Weaver(SHAPE).state_dict()
    ours = state["blocks.0.gate_up_proj.weight"]
    theirs = mirai_state(state)["speculator.weaver.layers.0.mlp.up_projection.weights"]
    torch.testing.assert_close(theirs, torch.cat([ours[48:], ours[:48]]))


@pytest.mark.parametrize("bits", [4, 8])
def test_quantization_keeps_values_within_a_step(bits: int) -> None:
    torch.manual_seed(0)
    weight = torch.randn(8, 256)
    codes, scales, biases = quantize_affine(weight, bits, 64)
    back = dequantize_affine(codes, scales, biases, bits)
    step = scales.float().abs().repeat_interleave(64, 1)
    # Half a step by rounding; making zero a code can cut off another half at the far end of a group's range, and scales and
    # biases in bf16 add a share of the range.
    assert ((back - weight).abs() <= step + 0.01 * weight.abs().max()).all()
    assert codes.shape == (8, 256 * bits // 32)


def test_target_folder_loads_in_transformers(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3_5ForCausalLM

    tokenizer = train_tokenizer(["def add(a, b):\n    return a + b\n"] * 3, TINY.vocab_size)
    save_tokenizer(tokenizer, tmp_path / "tokenizer", 128)
    run = tmp_path / "run"
    save_shards(run / "weights", "model", Target(TINY).state_dict(), shard_bytes=50_000)
    TINY.save(run / "shape.json")
    assert len(list((run / "weights").iterdir())) > 1
    export_target(run, tmp_path / "tokenizer", tmp_path / "out", None, 64)
    assert isinstance(AutoModelForCausalLM.from_pretrained(tmp_path / "out"), Qwen3_5ForCausalLM)

    loaded = AutoTokenizer.from_pretrained(tmp_path / "out")
    turns = [{"role": "user", "content": "add"}, {"role": "assistant", "content": "return a"}]
    pieces = chat_pieces(Conversation("code", "", tuple(Message(**turn) for turn in turns)))
    trained = tokenize([pieces], tokenizer)
    rendered = loaded.apply_chat_template(turns, tokenize=True, return_dict=False)
    assert trained.ids.tolist() == rendered
    learned = trained.ids[trained.role == LEARN]
    assert loaded.decode(learned) == "return a<|im_end|>"


def test_gguf_llama_is_the_same_model_as_its_folder() -> None:
    from transformers import AutoModelForCausalLM

    folder = FIXTURES / "tiny-llama"
    ids = torch.tensor([[1, 5, 9, 200, 31, 77]])
    with torch.no_grad():
        truth = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(ids).logits
        ours = load_llama(folder / "model.gguf")(ids).logits
    assert np.abs((truth - ours).numpy()).max() < 2e-2


def test_what_is_unpacked_is_what_was_quantized() -> None:
    torch.manual_seed(0)
    state = {"a.weight": torch.randn(6, 128), "norm.weight": torch.randn(128), "in_proj_a.weight": torch.randn(2, 128)}
    again = unpack_state(quantize_state(state, 8, 64), 8)
    assert again.keys() == state.keys()
    torch.testing.assert_close(again["a.weight"].float(), state["a.weight"], atol=0.04, rtol=0)
    assert torch.equal(again["norm.weight"], state["norm.weight"])


def test_a_quantized_folder_opens_as_our_network_and_as_the_library_s(tmp_path: Path) -> None:
    model = randomized(TINY)
    model.config.save(tmp_path / "shape.json")
    save_shards(tmp_path / "weights", "model", model.state_dict())
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / name).write_text("{}")
    export_target(tmp_path, tmp_path, tmp_path / "out", bits=8, group_size=32)
    ids = torch.randint(0, TINY.vocab_size, (1, 70))
    ours, library = open_bundled(tmp_path / "out", "cpu"), open_model(tmp_path / "out", "cpu")
    starts = torch.zeros_like(ids, dtype=torch.bool)
    starts[:, 0] = True
    with torch.no_grad():
        logits = ours.logits(ours(ids, make_layout(ours.config, starts))[0])
        torch.testing.assert_close(logits, library(ids).logits, rtol=1e-4, atol=2e-4)
    assert ours.config == model.config
    assert open_features(tmp_path / "out", "cpu").num_layers == TINY.num_hidden_layers
