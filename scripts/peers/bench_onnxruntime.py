#!/usr/bin/env python3
"""ONNX Runtime GenAI for `scripts/bench_peers.py`; needs `pip install onnxruntime-genai`.

    bench_onnxruntime.py MODEL PP TG REPETITIONS THREADS

MODEL is a folder that `python -m onnxruntime_genai.models.builder` made, or a `.gguf` file, for which the folder
`ort-NAME` beside it is taken. Its weights are quantized anew from 16 bits, so they are not those of the GGUF file.
A prompt of PP tokens is timed up to the first token, TG tokens from there on.
"""
import json
import sys
import time
from pathlib import Path

import numpy
import onnxruntime_genai


def folder(model: str) -> str:
    path = Path(model)
    if path.suffix == ".gguf":
        path = path.with_name(f"ort-{path.stem}")
    if not (path / "genai_config.json").exists():
        sys.exit(f"`{path}` has no `genai_config.json`: make it with `python -m onnxruntime_genai.models.builder`")
    return str(path)


def main() -> None:
    model = folder(sys.argv[1])
    num_prompt, num_text, repetitions, threads = map(int, sys.argv[2:6])
    started = time.perf_counter()
    config = onnxruntime_genai.Config(model)
    config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}))
    loaded = onnxruntime_genai.Model(config)
    load_s = time.perf_counter() - started

    def start(length: int, seed: int, tokens: int):
        """A generator that has written its first token, and how long that took."""
        params = onnxruntime_genai.GeneratorParams(loaded)
        params.set_search_options(max_length=length + tokens, min_length=length + tokens, do_sample=False)
        generator = onnxruntime_genai.Generator(loaded, params)
        ids = 1000 + numpy.random.default_rng(seed).integers(0, 30000, length, dtype=numpy.int32)
        started = time.perf_counter()
        generator.append_tokens(ids)
        generator.generate_next_token()
        return generator, time.perf_counter() - started

    def decode(seed: int) -> float:
        generator, _ = start(4, seed, num_text + 2)
        started = time.perf_counter()
        for _ in range(num_text):
            generator.generate_next_token()
        return num_text / (time.perf_counter() - started)

    start(num_prompt, 0, 2)
    pp = [num_prompt / start(num_prompt, 1 + i, 2)[1] for i in range(repetitions)]
    tg = [decode(1000 + i) for i in range(repetitions)]
    print(json.dumps({"pp": pp, "tg": tg, "load_s": load_s, "version": onnxruntime_genai.__version__}))


if __name__ == "__main__":
    main()
