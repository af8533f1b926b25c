#!/usr/bin/env python3
"""The official `openai` and `anthropic` packages against a running server.

    pip install openai anthropic
    pleach serve --model fixtures/tiny-qwen35 --port 8000 &
    crates/server/tests/sdk.py http://127.0.0.1:8000

The model may be a tiny random one: what is checked is that every answer parses, adds up and obeys its grammar.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import anthropic
import openai

BASE = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
client = openai.OpenAI(base_url=BASE + "/v1", api_key="none", max_retries=0)
claude = anthropic.Anthropic(base_url=BASE, api_key="none", max_retries=0)
USER = [{"role": "user", "content": "Pick a fruit"}]
QUIET = {"enable_thinking": False}
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"type": "string", "enum": ["apple", "pear"]}, "count": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["kind", "count"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "pick", "description": "Picks.", "parameters": SCHEMA}}


def chat() -> None:
    answer = client.chat.completions.create(model="any", messages=USER, max_tokens=8, temperature=0, logprobs=True, top_logprobs=2)
    assert answer.usage and answer.usage.completion_tokens <= 8
    assert answer.choices[0].finish_reason in ("length", "stop")
    assert answer.choices[0].logprobs is not None


def chat_stream() -> None:
    options = {"include_usage": True}
    whole = client.chat.completions.create(model="any", messages=USER, max_tokens=8, temperature=0, extra_body=QUIET)
    stream = client.chat.completions.create(
        model="any", messages=USER, max_tokens=8, temperature=0, stream=True, stream_options=options, extra_body=QUIET
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == (whole.choices[0].message.content or ""), (text, whole)
    assert chunks[-1].usage and not chunks[-1].choices


def structured() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "fruit", "strict": True, "schema": SCHEMA}}
    answer = client.chat.completions.create(
        model="any", messages=USER, max_tokens=300, response_format=form, extra_body=QUIET
    )
    fruit = json.loads(answer.choices[0].message.content or "")
    assert fruit["kind"] in ("apple", "pear") and 1 <= fruit["count"] <= 9


def tools() -> None:
    answer = client.chat.completions.create(
        model="any", messages=USER, max_tokens=300, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, extra_body=QUIET
    )
    calls = answer.choices[0].message.tool_calls or []
    assert len(calls) == 1 and answer.choices[0].finish_reason == "tool_calls"
    assert json.loads(calls[0].function.arguments)["kind"] in ("apple", "pear")


def tools_stream() -> None:
    with client.chat.completions.stream(
        model="any", messages=USER, max_tokens=300, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, extra_body=QUIET
    ) as stream:
        final = stream.get_final_completion()
    calls = final.choices[0].message.tool_calls or []
    assert calls and json.loads(calls[0].function.arguments)["count"] in range(1, 10)


def completions() -> None:
    answer = client.completions.create(model="any", prompt=["Hello", "World"], max_tokens=4)
    assert len(answer.choices) == 2


def embeddings() -> None:
    vectors = client.embeddings.create(model="any", input=["Hello", "World"]).data
    assert len(vectors) == 2 and abs(sum(value * value for value in vectors[0].embedding) - 1) < 1e-4


def responses() -> None:
    answer = client.responses.create(model="any", input="Pick a fruit", max_output_tokens=8, reasoning={"effort": "none"})
    assert answer.status in ("completed", "incomplete") and answer.usage
    kinds = [
        event.type
        for event in client.responses.create(model="any", input="Pick a fruit", max_output_tokens=8, stream=True)
    ]
    assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete"), kinds


def models() -> None:
    assert len(client.models.list().data) == 1
    assert client.models.retrieve(client.models.list().data[0].id).object == "model"


def errors() -> None:
    for kind, call in [
        (openai.BadRequestError, lambda: client.chat.completions.create(model="any", messages=USER, temperature=-1)),
        (openai.BadRequestError, lambda: client.chat.completions.create(model="any", messages=[])),
        (openai.NotFoundError, lambda: client.models.retrieve("missing")),
    ]:
        try:
            call()
        except kind as error:
            assert error.body and error.message
        else:
            raise AssertionError("no error")


def cancelled() -> None:
    stream = client.chat.completions.create(model="any", messages=USER, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    chat()


def messages() -> None:
    answer = claude.messages.create(model="any", max_tokens=8, messages=USER, system="Be brief.")
    assert answer.stop_reason in ("max_tokens", "end_turn") and answer.usage.output_tokens <= 8
    with claude.messages.stream(model="any", max_tokens=8, messages=USER) as stream:
        "".join(stream.text_stream)
        assert stream.get_final_message().usage.output_tokens <= 8
    assert claude.messages.count_tokens(model="any", messages=USER).input_tokens > 0


def messages_tools() -> None:
    tool = {"name": "pick", "input_schema": SCHEMA}
    with claude.messages.stream(
        model="any", max_tokens=300, messages=USER, tools=[tool], tool_choice={"type": "tool", "name": "pick"},
        thinking={"type": "disabled"},
    ) as stream:
        final = stream.get_final_message()
    block = final.content[-1]
    assert block.type == "tool_use" and block.input["kind"] in ("apple", "pear"), final


def messages_errors() -> None:
    try:
        claude.messages.create(model="any", max_tokens=0, messages=USER)
    except anthropic.BadRequestError as error:
        assert error.body["error"]["type"] == "invalid_request_error"
    else:
        raise AssertionError("no error")


CHECKS: list[Callable[[], None]] = [
    chat, chat_stream, structured, tools, tools_stream, completions, embeddings, responses, models, errors, cancelled,
    messages, messages_tools, messages_errors,
]

if __name__ == "__main__":
    failed = 0
    for check in CHECKS:
        try:
            check()
            print(f"ok      {check.__name__}")
        except Exception as error:  # noqa: BLE001
            failed += 1
            print(f"failed  {check.__name__}: {type(error).__name__}: {error}")
    print(f"{len(CHECKS) - failed} passed, {failed} failed")
    raise SystemExit(1 if failed else 0)
