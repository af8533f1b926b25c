"""The commands of `docs/train-a-drafter.md`, one after the other, at toy size."""

import importlib
import json
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


@pytest.mark.parametrize("model", ["tiny-llama", "tiny-qwen3"])
def test_replies_drafter_weaver_measure_export(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = FIXTURES / model
    prompts = tmp_path / "prompts.jsonl"
    words = ["red", "green", "blue", "one", "two", "three", "tree", "list"]
    lines = [
        {"category": "chat" if n % 2 else "code", "messages": [{"role": "user", "content": f"{a} {b}"}]}
        for n, (a, b) in enumerate((a, b) for a in words for b in words)
    ]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    replies = str(tmp_path / "replies/replies.npz")
    small = ["--rows", "2", "--context", "256", "--blocks", "8", "--device", "cpu", "--steps", "4"]

    def call(module: str, *args: object) -> None:
        monkeypatch.setattr(sys, "argv", [module, *map(str, args)])
        importlib.import_module(f"pleach_training.{module}").main()

    generated = ["--rows", 32, "--max-new", 24, "--longest-prompt", 200, "--device", "cpu"]
    call("replies", "--target", target, "--prompts", prompts, "--out", tmp_path / "replies", *generated)
    shape = ["--heads", 2, "--kv-heads", 1, "--head-dim", 16, "--intermediate", 64, "--taps", 2, "--block", 4]
    drafted = ["--mask-id", 3, "--draft-vocab", 128, *shape, *small]
    call("drafter.train", "--target", target, "--replies", replies, "--out", tmp_path / "drafter", *drafted)
    frozen = ["--target", target, "--drafter", tmp_path / "drafter", "--replies", replies]
    woven = ["--rank", 32, "--heads", 2, "--mlp", 32, "--pool", 8, *small]
    call("weaver.train", *frozen, "--out", tmp_path / "weaver", *woven)

    # Both can begin with what was trained: at a rate of 0 nothing of it changes, in however many parts.
    further = [*small, "--store-gb", 1e-3, "--lr", 0, "--seed", 1]
    again = ["--target", target, "--replies", replies]
    call("drafter.train", *again, "--out", tmp_path / "drafter2", "--start-from", tmp_path / "drafter", *further)
    further += ["--drafter", tmp_path / "drafter", "--start-from", tmp_path / "weaver"]
    call("weaver.train", *again, "--out", tmp_path / "weaver2", *further)
    for name in ("drafter", "weaver"):
        old, new = (load_file(tmp_path / run / f"{name}.safetensors") for run in (name, name + "2"))
        assert old.keys() == new.keys() and all(old[key].equal(new[key]) for key in old)
    with pytest.raises(SystemExit):
        call("weaver.train", *again, "--out", tmp_path / "weaver3", *further, "--pool", 16)

    measured = ["--splits", "train", "--limit", 4, "--context", 256, "--blocks", 8, "--device", "cpu"]
    weaver = ["--weaver", tmp_path / "weaver"]
    call("evaluate.measure", *frozen, *weaver, "--out", tmp_path / "metrics.json", *measured)
    found = json.loads((tmp_path / "metrics.json").read_text())["sets"]["train"]
    part = found.get("text") or found["loops"]
    assert part["tokens_per_pass"]["weaver/16"] >= 1.0

    call("export", "drafter", "--run", tmp_path / "drafter", "--out", tmp_path / "out")
    call("export", "weaver", "--run", tmp_path / "weaver", "--out", tmp_path / "out")
    assert "layers.0.self_attn.q_proj.weight" in load_file(tmp_path / "out/model.safetensors")
    assert "blocks.0.qkv_proj.weight" in load_file(tmp_path / "out/weaver.safetensors")

    # What is exported measures like the runs that it came from.
    frozen[3], weaver[1] = tmp_path / "out", tmp_path / "out"
    call("evaluate.measure", *frozen, *weaver, "--out", tmp_path / "again.json", *measured)
    assert json.loads((tmp_path / "again.json").read_text())["sets"]["train"] == found
