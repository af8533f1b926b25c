"""A tiny Llama and replies for the tests of drafter, Weaver and evaluation."""

from __future__ import annotations

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pleach_training.drafter.config import DrafterConfig
from pleach_training.drafter.data import Parts, Replies, Store
from pleach_training.drafter.features import HuggingFaceFeatures
from pleach_training.drafter.train import DraftTrainConfig, DraftTrainer

VOCAB, HIDDEN, LAYERS, TAPS = 64, 32, 6, (1, 2)
MASK_ID = 63


def features() -> HuggingFaceFeatures:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    return HuggingFaceFeatures(LlamaForCausalLM(config).eval().requires_grad_(False))


def replies(num: int, seed: int, split: str = "train") -> Replies:
    """Sequences that count upwards in steps of one or three."""
    rng = np.random.default_rng(seed)
    ids, plen, glen = [], [], []
    for _ in range(num):
        length, stride = int(rng.integers(20, 40)), int(rng.choice([1, 3]))
        ids.append((rng.integers(60) + stride * np.arange(length)) % 60)
        plen.append(5)
        glen.append(length - 5)
    return _replies(np.concatenate(ids), plen, glen, split)


def as_replies(prompts: list[list[int]], answers: list[list[int]]) -> Replies:
    """Given prompts and answers."""
    whole = np.concatenate([[*p, *a] for p, a in zip(prompts, answers, strict=True)])
    return _replies(whole, [len(p) for p in prompts], [len(a) for a in answers], "train")


def _replies(ids: np.ndarray, plen: list[int], glen: list[int], split: str) -> Replies:
    num = len(plen)
    lengths = (np.array(plen), np.array(glen))
    return Replies(ids.astype(np.uint16), *lengths, np.zeros(num), np.array([split] * num), np.ones(num, bool))


def shape(**changes: object) -> DrafterConfig:
    fields: dict = {
        "hidden_size": HIDDEN,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "vocab_size": VOCAB,
        "num_target_layers": LAYERS,
        "target_layer_ids": TAPS,
        "mask_token_id": MASK_ID,
        "block_size": 4,
        "draft_vocab_size": 60,
    }
    return DrafterConfig(**{**fields, **changes})


def trainer(steps: int = 10, **changes: object) -> DraftTrainer:
    config = DraftTrainConfig(
        steps=steps, rows=4, context=64, blocks=8, lr=1e-2, warmup=5, checkpoint_minutes=0.02, **changes
    )
    return DraftTrainer(shape(), config, features(), torch.arange(60), "cpu")


def parts(num: int, seed: int) -> Parts:
    """Replies in one part."""
    return Parts([replies(num, seed)], lambda part: Store.build(part, features(), TAPS, "cpu"))


def store(num: int, seed: int) -> Store:
    return Store.build(replies(num, seed), features(), TAPS, "cpu")
