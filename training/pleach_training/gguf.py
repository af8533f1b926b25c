"""Reads a Llama in GGUF (F32, F16, BF16, Q8_0, Q4_0, Q4_1) as Hugging Face's weights and config."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
# Type code: (elements of a block, bytes of a block).
_BLOCKS = {0: (1, 4), 1: (1, 2), 30: (1, 2), 2: (32, 18), 3: (32, 20), 8: (32, 34)}


@dataclass
class Gguf:
    """Metadata and dequantized tensors (f32, shapes as Hugging Face writes them: outer dimension first)."""

    metadata: dict[str, Any]
    tensors: dict[str, Tensor]


def read_metadata(path: Path) -> dict[str, Any]:
    """The metadata alone."""
    with path.open("rb") as file:
        return _header(file, path)[0]


def read_gguf(path: Path) -> Gguf:
    """Reads a whole file."""
    with path.open("rb") as file:
        metadata, num_tensors = _header(file, path)
        infos = [_info(file) for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", 32)
        begin = -(-file.tell() // alignment) * alignment
    data = np.memmap(path, mode="r")
    tensors = {}
    for name, shape, kind, offset in infos:
        if kind not in _BLOCKS:
            raise ValueError(f"tensor {name} has GGUF type {kind}: known are {sorted(_BLOCKS)}")
        length, size = _BLOCKS[kind]
        num_bytes = int(np.prod(shape)) // length * size
        raw = np.asarray(data[begin + offset : begin + offset + num_bytes])
        tensors[name] = torch.from_numpy(dequantize(raw, kind)).reshape(shape)
    return Gguf(metadata, tensors)


def dequantize(raw: NDArray[np.uint8], kind: int) -> NDArray[np.float32]:
    """The f32 elements of blocks of GGUF type `kind`, flat."""
    if kind == 0:
        return raw.view(np.float32).copy()
    if kind == 1:
        return raw.view(np.float16).astype(np.float32)
    if kind == 30:
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    blocks = raw.reshape(-1, _BLOCKS[kind][1])
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    if kind == 8:
        return (blocks[:, 2:].view(np.int8) * scale).reshape(-1)
    nibbles = blocks[:, 2 if kind == 2 else 4 :]
    codes = np.concatenate([nibbles & 15, nibbles >> 4], 1).astype(np.float32)
    if kind == 2:
        return ((codes - 8) * scale).reshape(-1)
    minimum = blocks[:, 2:4].copy().view(np.float16).astype(np.float32)
    return (codes * scale + minimum).reshape(-1)


def load_llama(path: Path) -> LlamaForCausalLM:
    """A Llama-architecture GGUF as `LlamaForCausalLM` in f32."""
    gguf = read_gguf(path)
    if "rope_freqs.weight" in gguf.tensors:
        raise ValueError(f"{path} scales its rotary frequencies: take the unquantized folder of this model instead")
    meta = {k.removeprefix("llama."): v for k, v in gguf.metadata.items()}
    heads, kv_heads = meta["attention.head_count"], meta["attention.head_count_kv"]
    config = LlamaConfig(
        vocab_size=gguf.tensors["token_embd.weight"].shape[0],
        hidden_size=meta["embedding_length"],
        intermediate_size=meta["feed_forward_length"],
        num_hidden_layers=meta["block_count"],
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=meta["context_length"],
        rms_norm_eps=meta["attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": meta["rope.freq_base"]},
        tie_word_embeddings="output.weight" not in gguf.tensors,
        bos_token_id=meta.get("tokenizer.ggml.bos_token_id"),
        eos_token_id=meta.get("tokenizer.ggml.eos_token_id"),
    )
    model = LlamaForCausalLM(config)
    state = {_rename(k): v for k, v in gguf.tensors.items()}
    for name, tensor in state.items():
        if name.endswith("q_proj.weight"):
            state[name] = unpermute(tensor, heads)
        elif name.endswith("k_proj.weight"):
            state[name] = unpermute(tensor, kv_heads)
    missing, unexpected = model.load_state_dict(state, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise ValueError(f"{path} does not hold a plain Llama: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    return model.eval()


def load_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """The byte-level BPE tokenizer of a GGUF file whose split rule is GPT-2's with single digits (`smollm`)."""
    meta = read_metadata(path)
    rule = meta.get("tokenizer.ggml.pre")
    if rule != "smollm":
        raise ValueError(f"{path} splits text by the rule {rule}: only `smollm` is known; give the model's tokenizer folder")
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = 3
    special = [t for t, kind in zip(tokens, meta["tokenizer.ggml.token_type"], strict=True) if kind == control]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=tokens[meta["tokenizer.ggml.eos_token_id"]],
        chat_template=meta.get("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
    )


def unpermute(weight: Tensor, heads: int) -> Tensor:
    """Undoes the row order that GGUF gives to Llama's queries and keys (neighboring pairs are rotated)."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def _rename(name: str) -> str:
    whole = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
    if name in whole:
        return whole[name]
    _, layer, part, leaf = name.split(".")
    return f"model.layers.{layer}.{_NAMES[part]}.{leaf}"


def _header(file: BufferedReader, path: Path) -> tuple[dict[str, Any], int]:
    """Metadata and the number of tensors."""
    if file.read(4) != b"GGUF":
        raise ValueError(f"{path} is not a GGUF file: its first four bytes say something else")
    _version, num_tensors, num_entries = _unpack(file, "IQQ")
    metadata = {}
    for _ in range(num_entries):
        key = _string(file)
        metadata[key] = _value(file, _unpack(file, "I")[0])
    return metadata, num_tensors


def _unpack(file: BufferedReader, fmt: str) -> tuple[Any, ...]:
    return struct.unpack("<" + fmt, file.read(struct.calcsize("<" + fmt)))


def _string(file: BufferedReader) -> str:
    return file.read(_unpack(file, "Q")[0]).decode("utf-8", "replace")


def _value(file: BufferedReader, kind: int) -> Any:
    if kind == _STRING:
        return _string(file)
    if kind == _ARRAY:
        inner, length = _unpack(file, "IQ")
        if inner == _STRING:
            return [_string(file) for _ in range(length)]
        return list(_unpack(file, f"{length}{_SCALARS[inner]}"))
    return _unpack(file, _SCALARS[kind])[0]


def _info(file: BufferedReader) -> tuple[str, tuple[int, ...], int, int]:
    name = _string(file)
    num_dims = _unpack(file, "I")[0]
    dims = _unpack(file, f"{num_dims}Q")
    kind, offset = _unpack(file, "IQ")
    return name, tuple(reversed(dims)), kind, offset
