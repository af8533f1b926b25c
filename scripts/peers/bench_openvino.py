#!/usr/bin/env python3
"""OpenVINO GenAI for `scripts/bench_peers.py`; needs `pip install openvino-genai`.

    bench_openvino.py MODEL PP TG REPETITIONS THREADS

MODEL is a `.gguf` file or a folder in OpenVINO's own format. A prompt of PP tokens is timed by the library's own time to
the first token, which includes drawing it; TG tokens by its time per token after the first. Every prompt is another
one, so that nothing is found in a cache.
"""
import json
import sys
import time

import numpy
import openvino
import openvino_genai


def prompt(length: int, seed: int) -> openvino_genai.TokenizedInputs:
    ids = 1000 + numpy.random.default_rng(seed).integers(0, 30000, (1, length), dtype=numpy.int64)
    return openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(numpy.ones_like(ids)))


def main() -> None:
    model = sys.argv[1]
    num_prompt, num_text, repetitions, threads = map(int, sys.argv[2:6])
    started = time.perf_counter()
    pipeline = openvino_genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=threads)
    load_s = time.perf_counter() - started

    def metrics(length: int, seed: int, tokens: int):
        config = openvino_genai.GenerationConfig(max_new_tokens=tokens, ignore_eos=True, do_sample=False)
        return pipeline.generate(prompt(length, seed), config).perf_metrics

    metrics(num_prompt, 0, 2)  # Kernels are compiled for a shape when it is first met.
    pp = [1e3 * num_prompt / metrics(num_prompt, 1 + i, 1).get_ttft().mean for i in range(repetitions)]
    tg = [1e3 / metrics(4, 1000 + i, num_text + 1).get_tpot().mean for i in range(repetitions)]
    print(json.dumps({"pp": pp, "tg": tg, "load_s": load_s, "version": openvino_genai.__version__}))


if __name__ == "__main__":
    main()
