#!/usr/bin/env python3
"""Load on a running server: how fast many streams are, and whether each still gets its own text.

    scripts/load_server.py speed --url http://127.0.0.1:8000 --streams 1,2,4,8
    scripts/load_server.py soak --url http://127.0.0.1:8000 --pid PID --seconds 600
    scripts/load_server.py turns --url http://127.0.0.1:8000 --tokens 4096

`speed` works with every server that speaks the OpenAI protocol and takes `ignore_eos`, and with several by turns. `soak` first asks each of its requests alone, then
lets clients ask them at random, cancel, disconnect, and send what cannot be answered; it fails if a text differs, if anything
is stuck at the end, or if memory grew by more than 2 %. `turns` times the first and the second turn of a long conversation.
Python's standard library only.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import statistics
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

TOPICS = [
    "a hedge whose branches grow together",
    "why the sky is blue",
    "how bread rises",
    "a lighthouse in winter",
    "what a prime number is",
    "the first steam engines",
    "a garden behind a wall",
    "how bees find their way",
    "why ships float",
    "an old clock tower",
    "how rivers shape valleys",
    "the colors of autumn",
]


@dataclass(frozen=True)
class Server:
    host: str
    port: int

    @staticmethod
    def of(url: str) -> Server:
        parts = urlsplit(url)
        return Server(parts.hostname or "127.0.0.1", parts.port or 80)

    def connect(self, timeout: float = 600) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def get(self, path: str) -> str:
        connection = self.connect()
        connection.request("GET", path)
        text = connection.getresponse().read().decode()
        connection.close()
        return text

    def post(self, body: bytes, path: str = "/v1/chat/completions") -> http.client.HTTPResponse:
        connection = self.connect()
        connection.request("POST", path, body, {"content-type": "application/json"})
        return connection.getresponse()


@dataclass
class Answer:
    text: str = ""
    finish: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    first_s: float | None = None
    # What the server says that reading the prompt took.
    prompt_s: float = 0.0
    total_s: float = 0.0


def stream(server: Server, request: dict[str, Any], chunks: int | None = None) -> Answer:
    """Reads a streamed answer; closes the connection after so many chunks, if that is given."""
    began = time.monotonic()
    body = {**request, "stream": True, "stream_options": {"include_usage": True}}
    response = server.post(json.dumps(body).encode())
    if response.status != 200:
        raise RuntimeError(f"status {response.status}: {response.read()[:300]!r}")
    answer, seen = Answer(), 0
    for line in response:
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        chunk = json.loads(line[6:])
        if "error" in chunk:
            raise RuntimeError(f"error in a stream: {chunk['error']}")
        answer.usage = chunk.get("usage") or answer.usage
        answer.prompt_s = chunk.get("timings", {}).get("prompt_ms", 1e3 * answer.prompt_s) / 1e3
        for choice in chunk.get("choices", []):
            delta = choice.get("delta", {})
            piece = (delta.get("reasoning_content") or "") + (delta.get("content") or "")
            if piece and answer.first_s is None:
                answer.first_s = time.monotonic() - began
            answer.text += piece
            answer.finish = choice.get("finish_reason") or answer.finish
        seen += 1
        if chunks is not None and seen >= chunks:
            break
    response.close()
    answer.total_s = time.monotonic() - began
    return answer


def whole(server: Server, request: dict[str, Any]) -> Answer:
    began = time.monotonic()
    response = server.post(json.dumps(request).encode())
    body = response.read()
    if response.status != 200:
        raise RuntimeError(f"status {response.status}: {body[:300]!r}")
    value = json.loads(body)
    choice = value["choices"][0]
    message = choice["message"]
    text = (message.get("reasoning_content") or "") + (message.get("content") or "")
    return Answer(text, choice["finish_reason"], value["usage"], total_s=time.monotonic() - began)


# ---- speed --------------------------------------------------------------------------------------------------------------


def speed(arguments: argparse.Namespace) -> int:
    """Tokens per second of all streams together. Prompts are short, so this is mostly the speed of writing.

    Servers take turns, so that a slow moment of the machine meets all of them.
    """
    counts = [int(count) for count in arguments.streams.split(",")]
    rates: dict[tuple[str, int], list[float]] = {}
    for round_number in range(arguments.rounds + 1):
        for count in counts:
            for url in arguments.url:
                rate = together(Server.of(url), count, arguments.max_tokens, round_number)
                # The first round warms up.
                if round_number > 0:
                    rates.setdefault((url, count), []).append(rate)
    for (url, count), values in sorted(rates.items()):
        print(
            f"{url}: {count:2} streams: {statistics.median(values):7.1f} tokens/s "
            f"({min(values):.1f} to {max(values):.1f})"
        )
    return 0


def together(server: Server, count: int, max_tokens: int, round_number: int) -> float:
    answers: list[Answer] = []

    def ask(number: int) -> None:
        topic = TOPICS[number % len(TOPICS)]
        content = f"{round_number}{number}. Write an essay about {topic}."
        request = {
            "messages": [{"role": "user", "content": content}],
            "temperature": 0,
            "max_tokens": max_tokens,
            "ignore_eos": True,
        }
        answers.append(stream(server, request))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(count)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - began
    return sum(answer.usage.get("completion_tokens", 0) for answer in answers) / seconds


# ---- turns --------------------------------------------------------------------------------------------------------------


def turns(arguments: argparse.Namespace) -> int:
    """Time in which the prompts of the first and the second turn are read, after a long first question."""
    server = Server.of(arguments.url)
    shares = []
    for round_number in range(arguments.rounds):
        words = [f"{random.Random(1000 * round_number + place).randrange(100)}" for place in range(arguments.tokens)]
        messages = [{"role": "user", "content": f"Round {round_number}. Numbers: " + " ".join(words)}]
        while count(server, messages) > arguments.tokens:
            words = words[: len(words) * 49 // 50]
            messages[0]["content"] = f"Round {round_number}. Numbers: " + " ".join(words)
        first = stream(server, ask_for(messages))
        # Thoughts are left out of later turns, as clients do.
        messages += [
            {"role": "assistant", "content": first.text.split("</think>")[-1]},
            {"role": "user", "content": "Go on."},
        ]
        second = stream(server, ask_for(messages))
        shares.append(second.prompt_s / first.prompt_s)
        cached = second.usage["prompt_tokens_details"]["cached_tokens"]
        print(
            f"first turn {first.usage['prompt_tokens']} tokens in {first.prompt_s:.3f} s; second "
            f"{second.usage['prompt_tokens']} tokens, {cached} cached, in {second.prompt_s:.3f} s ({100 * shares[-1]:.1f} %)"
        )
    print(f"median {100 * statistics.median(shares):.1f} %")
    return 0


def count(server: Server, messages: list[dict[str, str]]) -> int:
    body = json.dumps({"messages": messages}).encode()
    return int(json.loads(server.post(body, "/tokenize").read())["count"])


def ask_for(messages: list[dict[str, str]]) -> dict[str, Any]:
    return {"messages": messages, "temperature": 0, "max_tokens": 24}


# ---- soak ---------------------------------------------------------------------------------------------------------------


def requests() -> list[dict[str, Any]]:
    """Requests of every kind whose texts are known once they were asked alone."""
    found: list[dict[str, Any]] = []
    for number, topic in enumerate(TOPICS):
        messages = [
            {"role": "system", "content": "You answer in plain words. " * (1 + number % 3)},
            {"role": "user", "content": f"Tell me about {topic}. " * (1 + 3 * (number % 4))},
        ]
        if number % 3 == 0:
            messages += [
                {"role": "assistant", "content": f"Gladly: {topic} is a wide field."},
                {"role": "user", "content": "Go on."},
            ]
        request = {"messages": messages, "max_tokens": 8 + 5 * number, "seed": 17 * number}
        request |= [{"temperature": 0}, {"temperature": 0.9, "top_p": 0.95}, {"temperature": 1.2, "frequency_penalty": 0.4}][
            number % 3
        ]
        if number % 5 == 4:
            request["stop"] = ["e"]
        found.append(request)
    return found


@dataclass
class Soak:
    server: Server
    expected: list[tuple[dict[str, Any], Answer]]
    until: float
    wrong: list[str] = field(default_factory=list)
    done: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def client(self, seed: int) -> None:
        chance = random.Random(seed)
        while time.monotonic() < self.until and len(self.wrong) < 10:
            kind = chance.choices(list(ACTIONS), [weight for weight, _ in ACTIONS.values()])[0]
            try:
                found = ACTIONS[kind][1](self, chance)
            except (OSError, RuntimeError, ValueError, http.client.HTTPException) as error:
                found = repr(error)
            with self.lock:
                self.done[kind] = self.done.get(kind, 0) + 1
                if found is not None:
                    self.wrong.append(f"{kind}: {found}")

    def compare(self, answer: Answer, expected: Answer) -> str | None:
        if (answer.text, answer.finish) == (expected.text, expected.finish):
            return None
        return f"{answer.finish} {answer.text!r} in place of {expected.finish} {expected.text!r}"

    def streamed(self, chance: random.Random) -> str | None:
        request, expected = chance.choice(self.expected)
        return self.compare(stream(self.server, request), expected)

    def in_one_piece(self, chance: random.Random) -> str | None:
        request, expected = chance.choice(self.expected)
        return self.compare(whole(self.server, request), expected)

    def cancelled(self, chance: random.Random) -> str | None:
        request, expected = chance.choice(self.expected)
        answer = stream(self.server, request, chance.randrange(1, 12))
        return None if expected.text.startswith(answer.text) else self.compare(answer, expected)

    def disconnected(self, chance: random.Random) -> str | None:
        request, _ = chance.choice(self.expected)
        connection = self.server.connect()
        connection.request("POST", "/v1/chat/completions", json.dumps(request), {"content-type": "application/json"})
        time.sleep(chance.random() * 0.05)
        connection.close()
        return None

    def oversized(self, chance: random.Random) -> str | None:
        words = "one two three four five six seven eight " * 8000
        body = json.dumps({"messages": [{"role": "user", "content": words}], "max_tokens": 4})
        return refused(self.server, body.encode(), "context_length_exceeded")

    def broken(self, chance: random.Random) -> str | None:
        body, code = chance.choice(
            [
                (b'{"messages": [', "invalid_json"),
                (b'{"messages": [{"role": "user", "content": "x"}], "temperature": "hot"}', "invalid_value"),
                (b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}', "invalid_value"),
                (b"", "invalid_json"),
            ]
        )
        return refused(self.server, body, code)


def refused(server: Server, body: bytes, code: str) -> str | None:
    response = server.post(body)
    text = response.read()
    found = json.loads(text)["error"]["code"]
    return None if (response.status, found) == (400, code) else f"{response.status} {text[:200]!r} in place of 400 {code}"


# Weight and action of each kind.
ACTIONS = {
    "streamed": (8, Soak.streamed),
    "in one piece": (4, Soak.in_one_piece),
    "cancelled": (3, Soak.cancelled),
    "disconnected": (2, Soak.disconnected),
    "oversized": (1, Soak.oversized),
    "broken": (2, Soak.broken),
}


def soak(arguments: argparse.Namespace) -> int:
    server = Server.of(arguments.url)
    expected = [(request, whole(server, request)) for request in requests()]
    state = Soak(server, expected, time.monotonic() + arguments.seconds)
    clients = [threading.Thread(target=state.client, args=(seed,)) for seed in range(arguments.clients)]
    for client in clients:
        client.start()
    memory = watch(state, arguments.pid)
    for client in clients:
        client.join(timeout=120)
    faults = state.wrong + [f"client {number} is stuck" for number, client in enumerate(clients) if client.is_alive()]
    faults += left_over(server) + grown(memory)
    print(f"requests by kind: {state.done}")
    print("\n".join(faults) if faults else "no fault")
    return 1 if faults else 0


def watch(state: Soak, pid: int | None) -> list[int]:
    """Resident memory in KiB, each second."""
    memory = []
    while time.monotonic() < state.until and len(state.wrong) < 10:
        time.sleep(1)
        if pid is not None:
            memory.append(resident_kib(pid))
    return memory


def resident_kib(pid: int) -> int:
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def left_over(server: Server) -> list[str]:
    """What still runs or waits when nobody asks any more."""
    gauges: dict[str, float] = {}
    for _ in range(20):
        lines = (line.split() for line in server.get("/metrics").splitlines() if not line.startswith("#"))
        gauges = {parts[0]: float(parts[1]) for parts in lines if len(parts) == 2}
        if gauges["pleach_requests_running"] == 0 and gauges["pleach_requests_waiting"] == 0:
            return []
        time.sleep(0.5)
    return [f"still running: {gauges['pleach_requests_running']}, waiting: {gauges['pleach_requests_waiting']}"]


def grown(memory: list[int]) -> list[str]:
    """Memory of the last quarter against that of the second: in the first, caches fill."""
    if len(memory) < 8:
        return []
    quarter = len(memory) // 4
    before, after = (statistics.median(memory[quarter : 2 * quarter]), statistics.median(memory[-quarter:]))
    print(f"resident memory: {before / 1024:.1f} MiB, later {after / 1024:.1f} MiB ({100 * (after / before - 1):+.2f} %)")
    return [f"memory grew from {before} KiB to {after} KiB"] if after > 1.02 * before else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(required=True)
    for name, run in (("speed", speed), ("turns", turns), ("soak", soak)):
        mode = modes.add_parser(name)
        mode.set_defaults(run=run)
        if name == "speed":
            mode.add_argument("--url", nargs="+", default=["http://127.0.0.1:8000"])
        else:
            mode.add_argument("--url", default="http://127.0.0.1:8000")
        if name == "soak":
            mode.add_argument("--pid", type=int, help="process of the server, to watch its memory")
            mode.add_argument("--seconds", type=float, default=120)
            mode.add_argument("--clients", type=int, default=8)
        else:
            mode.add_argument("--rounds", type=int, default=3)
        if name == "speed":
            mode.add_argument("--streams", default="1,2,4,8")
            mode.add_argument("--max-tokens", type=int, default=128)
        if name == "turns":
            mode.add_argument("--tokens", type=int, default=4096)
    arguments = parser.parse_args()
    return arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
