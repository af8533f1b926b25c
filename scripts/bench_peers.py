#!/usr/bin/env python3
"""Measure `pleach` and other engines side by side on the same models, and print one Markdown table.

    scripts/bench_peers.py --llama-bench LLAMA_BENCH --models A.gguf B.gguf [--pleach target/release/pleach]
                           [--adapter NAME=COMMAND]... [--pp 512] [--tg 64] [--rounds 3] [--threads 2] [--json out.json]

Engines take turns: in each round every engine measures every model once, one process after the other, so that a slow
moment of the machine meets all of them. Figures are medians over the rounds with the slowest and the fastest, and the
ratio column is the median over rounds of pleach's speed divided by that engine's in the same round. The machine's read
bandwidth and integer peak come from `pleach bench`, which measures them before and after its own tests; peak memory is
that of the whole process, mapped files included; `load` is what the engine itself says that opening the model took, or
else, marked with a star, the time of a process that only loads the model and writes one token.

An adapter is a command that takes `MODEL PP TG REPETITIONS THREADS` (PP and TG are numbers) and prints, as its last line,
one JSON object: {"pp": [tokens/s, ...], "tg": [tokens/s, ...], "load_s": seconds or null}. `scripts/peers/` has some.
An adapter that fails on a model is reported with the last line that it wrote.
"""
import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def run(args: argparse.Namespace, command: list[str]) -> dict:
    """Output, peak memory in MB, seconds and, if it failed, why."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = time.perf_counter()
        process = subprocess.Popen([*shlex.split(args.prefix), *command], stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        status, usage = wait(process, started + args.timeout)
        seconds = time.perf_counter() - started
        out.seek(0)
        err.seek(0)
        text, errors = out.read().decode(errors="replace"), err.read().decode(errors="replace")
    error = None
    if status != 0:
        error = (errors.strip().splitlines() or [f"exit code {status}"])[-1][:160]
    return {"text": text, "rss_mb": usage.ru_maxrss / 1024, "seconds": seconds, "error": error}


def wait(process: subprocess.Popen, deadline: float):
    """Waits for this one process, whose memory is wanted; ends it at the deadline."""
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, usage
        if time.perf_counter() > deadline:
            process.kill()
            _, _, usage = os.wait4(process.pid, 0)
            process.returncode = -9
            return "timeout", usage
        time.sleep(0.02)


def last_object(text: str) -> dict:
    for line in reversed(text.strip().splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    raise ValueError("no line with a JSON object")


def pleach(args: argparse.Namespace, model: str) -> dict:
    command = [args.pleach, "bench", model, "-p", str(args.pp), "-n", str(args.tg), "-r", "1", "-t", str(args.threads),
               "--json", *shlex.split(args.pleach_args)]  # fmt: skip
    done = run(args, command)
    if done["error"]:
        return done
    measured = json.loads(done["text"])["runs"][0]
    speed = {test["kind"]: test["tokens_per_s"]["median"] for test in measured["tests"]}
    return {
        "pp": speed["prefill"],
        "tg": speed["decode"],
        "load_s": measured["load_ms"] / 1e3,
        "rss_mb": (measured["peak_resident_bytes"] or done["rss_mb"] * 2**20) / 2**20,
        "ceilings": measured["ceilings"],
        "activity": measured["activity"],
        "file_bytes": measured["model"]["file_bytes"],
        "error": None,
    }


def llama_bench(args: argparse.Namespace, model: str) -> dict:
    command = [args.llama_bench, "-m", model, "-p", str(args.pp), "-n", str(args.tg), "-r", "1", "-t", str(args.threads),
               "-o", "jsonl", *shlex.split(args.llama_args)]  # fmt: skip
    done = run(args, command)
    if done["error"]:
        return done
    tests = [json.loads(line) for line in done["text"].splitlines() if line.startswith("{")]
    speed = {("pp" if test["n_prompt"] else "tg"): test["samples_ts"][0] for test in tests}
    # It does not say how long it loads, so a run that does little else stands for it.
    short = [args.llama_bench, "-m", model, "-p", "0", "-n", "1", "-r", "1", "-t", str(args.threads), "--no-warmup"]
    loading = run(args, short)
    return {**speed, "load_s": loading["seconds"], "load_is_process": True, "rss_mb": done["rss_mb"], "error": None}


def samples(found: list | dict) -> list[float]:
    """Of an adapter; some give them by the number of tokens, of which there is one here."""
    return found if isinstance(found, list) else [sample for several in found.values() for sample in several]


def adapter(command: str):
    def measure(args: argparse.Namespace, model: str) -> dict:
        words = [*shlex.split(command), model, str(args.pp), str(args.tg), "1", str(args.threads)]
        done = run(args, words)
        if done["error"]:
            return done
        try:
            found = last_object(done["text"])
            return {
                "pp": statistics.median(samples(found["pp"])),
                "tg": statistics.median(samples(found["tg"])),
                "load_s": found.get("load_s"),
                "rss_mb": done["rss_mb"],
                "error": None,
            }
        except (ValueError, KeyError, TypeError) as error:
            return {"error": f"unreadable result: {error}"}

    return measure


def measure_all(args: argparse.Namespace, engines: dict) -> list[dict]:
    results = []
    for number in range(args.rounds):
        for model in args.models:
            for name, measure in engines.items():
                if any(r["engine"] == name and r["model"] == model and r["error"] for r in results):
                    continue
                load = os.getloadavg()[0]
                found = measure(args, model)
                found.pop("text", None)
                results.append({"round": number, "engine": name, "model": model, "load_average": load, **found})
                print(f"round {number + 1} of {args.rounds}: {name} on {Path(model).stem}"
                      + (f": {found['error']}" if found["error"] else ""), file=sys.stderr, flush=True)  # fmt: skip
    return results


def spread(values: list[float]) -> str:
    middle = statistics.median(values)
    digits = 0 if middle >= 100 else 1
    return f"{middle:.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def ratio(ours: dict[int, dict], theirs: dict[int, dict], key: str) -> str:
    both = [ours[r][key] / theirs[r][key] for r in ours.keys() & theirs.keys()]
    return f"{statistics.median(both):.2f}" if both else ""


def load_time(runs: list[dict]) -> str:
    known = [r["load_s"] for r in runs if r.get("load_s") is not None]
    star = "*" if any(r.get("load_is_process") for r in runs) else ""
    return f"{statistics.median(known):.2f}{star}" if known else ""


def by_round(results: list[dict], model: str, engine: str) -> dict[int, dict]:
    return {r["round"]: r for r in results if r["model"] == model and r["engine"] == engine and not r["error"]}


def table(args: argparse.Namespace, results: list[dict], engines: dict) -> str:
    lines = [f"| model | engine | pp{args.pp}, tokens/s | pleach / it | tg{args.tg}, tokens/s | pleach / it | load, s | peak memory, MiB | load average |",
             "|---|---|---:|---:|---:|---:|---:|---:|---:|"]  # fmt: skip
    for model in args.models:
        ours = by_round(results, model, "pleach")
        for name in engines:
            runs = by_round(results, model, name)
            stem = Path(model).stem
            if not runs:
                error = next((r["error"] for r in results if r["model"] == model and r["engine"] == name), "not run")
                lines.append(f"| {stem} | {name} | {error} | | | | | | |")
                continue
            all_runs = list(runs.values())
            cells = [
                stem,
                name,
                spread([r["pp"] for r in all_runs]),
                "" if name == "pleach" else ratio(ours, runs, "pp"),
                spread([r["tg"] for r in all_runs]),
                "" if name == "pleach" else ratio(ours, runs, "tg"),
                load_time(all_runs),
                f"{statistics.median(r['rss_mb'] for r in all_runs):.0f}",
                f"{min(r['load_average'] for r in all_runs):.1f} to {max(r['load_average'] for r in all_runs):.1f}",
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n\n" + machine(results)


def machine(results: list[dict]) -> str:
    """What the machine could do, before and after each measurement of pleach, and what else ran."""
    found = [r for r in results if r["engine"] == "pleach" and not r["error"]]

    def values(rate: str, scale: float) -> str:
        both = [[r["ceilings"][when][rate]["median"] / scale for r in found if r["ceilings"][when]] for when in ("before", "after")]
        return "; ".join(f"{when} {spread(v)}" for when, v in zip(("before", "after"), both) if v)

    others = [100 * r["activity"]["others"] for r in found if r["activity"]]
    lines = [f"Read bandwidth, GB/s: {values('read_bytes_per_s', 1e9)}.", f"8-bit products, GMAC/s: {values('int8_macs_per_s', 1e9)}."]
    if others:
        lines.append(f"Other processes used {min(others):.0f} to {max(others):.0f} % of the processors while pleach was measured.")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", required=True, nargs="+")
    parser.add_argument("--pleach", default="target/release/pleach")
    parser.add_argument("--llama-bench")
    parser.add_argument("--adapter", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--pp", type=int, default=512)
    parser.add_argument("--tg", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--prefix", default="", help="words before every command, such as 'chrt -f 5' on a busy machine")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one engine on one model")
    parser.add_argument("--pleach-args", default="", help="more arguments of `pleach bench`, such as '--kv-cache f32'")
    parser.add_argument("--llama-args", default="", help="more arguments of llama-bench, such as '-fa on'")
    parser.add_argument("--json", type=Path, help="write every single result here")
    args = parser.parse_args()

    engines = {"pleach": pleach}
    if args.llama_bench:
        engines["llama.cpp"] = llama_bench
    for named in args.adapter:
        name, separator, command = named.partition("=")
        if not separator:
            parser.error(f"--adapter is `{named}`, but must be NAME=COMMAND")
        engines[name] = adapter(command)
    results = measure_all(args, engines)
    print(table(args, results, engines))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
