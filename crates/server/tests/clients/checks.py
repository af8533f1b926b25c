"""Runs checks against a server and says what became of each."""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
import urllib.request
from collections.abc import Callable
from typing import Any

BASE = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
"""Where the server listens."""

KEY = sys.argv[2] if len(sys.argv) > 2 else "none"
"""A key to show, if the server asks for one."""

USER = [{"role": "user", "content": "Pick a fruit"}]
QUIET = {"enable_thinking": False}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"type": "string", "enum": ["apple", "pear"]},
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["kind", "count"],
    "additionalProperties": False,
}


def is_fruit(value: Any) -> bool:
    """Whether a value is what `SCHEMA` asks for."""
    return set(value) == {"kind", "count"} and value["kind"] in ("apple", "pear") and value["count"] in range(1, 10)


def metric(name: str) -> float:
    """A number of the server's metrics."""
    request = urllib.request.Request(f"{BASE}/metrics", headers={"authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=10) as page:
        for line in page.read().decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
    raise AssertionError(f"no {name}")


def wait_until_idle() -> None:
    """Waits until nothing runs any more, as must be soon after a client has gone."""
    end = time.monotonic() + 20
    while metric("pleach_requests_running") > 0:
        assert time.monotonic() < end, "a request goes on without its client"
        time.sleep(0.02)


def refused(kind: type[Exception], call: Callable[[], Any]) -> Any:
    """The error that a call must meet."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def run(checks: list[Callable[[], Any]]) -> None:
    """Runs all checks and ends the process with 1 if any failed."""
    failed = 0
    for check in checks:
        try:
            outcome = check()
            if inspect.isawaitable(outcome):
                asyncio.run(outcome)  # type: ignore[arg-type]
            print(f"ok      {check.__name__}")
        except Exception as error:  # noqa: BLE001
            failed += 1
            print(f"failed  {check.__name__}: {type(error).__name__}: {error}")
    print(f"{len(checks) - failed} passed, {failed} failed")
    raise SystemExit(1 if failed else 0)
