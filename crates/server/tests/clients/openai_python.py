#!/usr/bin/env python3
"""The official `openai` package for Python against a running server; `scripts/client_tests.sh` runs it.

The model may be a tiny random one: what is checked is that every answer parses, adds up and obeys its grammar.
"""

from __future__ import annotations

import json
from typing import Literal

import openai
from pydantic import BaseModel, Field

from checks import BASE, KEY, QUIET, SCHEMA, USER, is_fruit, refused, run, wait_until_idle

client = openai.OpenAI(base_url=BASE + "/v1", api_key=KEY, max_retries=0)
TOOL = {"type": "function", "function": {"name": "pick", "description": "Picks.", "parameters": SCHEMA}}
DEMAND = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 300, "extra_body": QUIET}


class Fruit(BaseModel):
    """What structured answers are parsed to."""

    kind: Literal["apple", "pear"]
    count: int = Field(ge=1, le=9)


def create(**fields):
    return client.chat.completions.create(model="any", messages=fields.pop("messages", USER), **fields)


def chat() -> None:
    answer = create(max_tokens=8, temperature=0)
    usage = answer.usage
    assert usage and usage.completion_tokens <= 8
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens is not None
    assert answer.choices[0].finish_reason in ("length", "stop")
    assert answer.object == "chat.completion" and answer.system_fingerprint


def a_seed_gives_the_same_text() -> None:
    first, second = (create(max_tokens=12, temperature=1, seed=7).choices[0].message for _ in range(2))
    assert first == second


def several_choices() -> None:
    answer = create(max_tokens=6, n=3, temperature=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]


def logprobs_whole_and_in_pieces() -> None:
    fields = {"max_tokens": 6, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    whole = create(**fields).choices[0].logprobs.content
    pieces = [token for chunk in create(**fields, stream=True) for choice in chunk.choices if choice.logprobs
              for token in choice.logprobs.content or []]
    assert whole == pieces and all(len(token.top_logprobs) == 2 for token in whole)


def stream() -> None:
    fields = {"max_tokens": 8, "temperature": 0, "extra_body": QUIET}
    whole = create(**fields)
    chunks = list(create(**fields, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == (whole.choices[0].message.content or ""), (text, whole)
    assert chunks[-1].usage and not chunks[-1].choices
    assert len({chunk.id for chunk in chunks}) == 1
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert reasons == [whole.choices[0].finish_reason]


def stream_helper() -> None:
    # A text that ends by itself: the package takes one that was cut off for an error.
    with client.chat.completions.stream(model="any", messages=USER, max_tokens=300, response_format=Fruit, extra_body=QUIET) as events:
        kinds = [event.type for event in events]
        final = events.get_final_completion()
    assert kinds.count("content.done") == 1, kinds
    assert isinstance(final.choices[0].message.parsed, Fruit)


async def asynchronous_stream() -> None:
    async with openai.AsyncOpenAI(base_url=BASE + "/v1", api_key=KEY, max_retries=0) as other:
        chunks = [chunk async for chunk in await other.chat.completions.create(
            model="any", messages=USER, max_tokens=8, stream=True)]
    assert chunks[0].choices[0].delta.role == "assistant"


def structured() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "fruit", "strict": True, "schema": SCHEMA}}
    answer = create(max_tokens=300, response_format=form, extra_body=QUIET)
    assert is_fruit(json.loads(answer.choices[0].message.content))


def structured_by_class() -> None:
    answer = client.chat.completions.parse(model="any", messages=USER, max_tokens=300, response_format=Fruit, extra_body=QUIET)
    assert isinstance(answer.choices[0].message.parsed, Fruit)


def tools() -> None:
    answer = create(**DEMAND)
    calls = answer.choices[0].message.tool_calls or []
    assert len(calls) == 1 and answer.choices[0].finish_reason == "tool_calls"
    assert is_fruit(json.loads(calls[0].function.arguments))


def tools_in_pieces() -> None:
    with client.chat.completions.stream(model="any", messages=USER, **DEMAND) as events:
        final = events.get_final_completion()
    (call,) = final.choices[0].message.tool_calls or []
    assert call.function.name == "pick" and is_fruit(json.loads(call.function.arguments))


def tools_there_and_back() -> None:
    message = create(**DEMAND).choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "42"}
    # Clients send back the whole message, nulls and all.
    again = create(messages=[*USER, message.model_dump(), result], tools=[TOOL], max_tokens=4)
    assert again.choices[0].finish_reason in ("length", "stop", "tool_calls")


def completions() -> None:
    answer = client.completions.create(model="any", prompt=["Hello", "World"], max_tokens=4, logprobs=1)
    assert len(answer.choices) == 2 and answer.choices[0].logprobs.tokens
    chunks = list(client.completions.create(model="any", prompt="Hello", max_tokens=4, stream=True))
    assert chunks[-1].choices[0].finish_reason in ("length", "stop")


def embeddings() -> None:
    # The package asks for base64 unless told otherwise.
    packed = client.embeddings.create(model="any", input=["Hello", "World"]).data
    plain = client.embeddings.create(model="any", input=["Hello", "World"], encoding_format="float").data
    assert len(packed) == 2 and abs(sum(value * value for value in packed[0].embedding) - 1) < 1e-4
    assert all(abs(a - b) < 1e-6 for a, b in zip(packed[1].embedding, plain[1].embedding, strict=True))
    assert client.embeddings.create(model="any", input=[[5, 6, 7], [8]]).usage.prompt_tokens == 4


def responses() -> None:
    answer = client.responses.create(model="any", input="Pick a fruit", max_output_tokens=8, reasoning={"effort": "none"})
    assert answer.status in ("completed", "incomplete") and answer.usage.output_tokens <= 8
    assert isinstance(answer.output_text, str)


def responses_in_pieces() -> None:
    fields = {"model": "any", "input": "Pick a fruit", "reasoning": {"effort": "none"}}
    # The package takes an incomplete response for an error, so this one has an end.
    with client.responses.stream(**fields, max_output_tokens=300, text_format=Fruit) as events:
        seen = list(events)
        final = events.get_final_response()
    numbers = [event.sequence_number for event in seen]
    assert numbers == sorted(set(numbers)), numbers
    assert (seen[0].type, seen[-1].type) == ("response.created", "response.completed")
    text = "".join(event.delta for event in seen if event.type == "response.output_text.delta")
    assert text == final.output_text
    *_, last = client.responses.create(**fields, max_output_tokens=2, stream=True)
    assert last.type in ("response.completed", "response.incomplete")


def responses_structured() -> None:
    answer = client.responses.parse(
        model="any", input="Pick a fruit", max_output_tokens=300, text_format=Fruit, reasoning={"effort": "none"})
    assert isinstance(answer.output_parsed, Fruit)


def responses_with_tools() -> None:
    tool = {"type": "function", "name": "pick", "parameters": SCHEMA, "strict": True}
    fields = {"tools": [tool, {"type": "web_search"}], "max_output_tokens": 300, "reasoning": {"effort": "none"}}
    first = client.responses.create(model="any", input=USER, tool_choice="required", parallel_tool_calls=False, **fields)
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert is_fruit(json.loads(call.arguments))
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "42"}
    again = client.responses.create(model="any", input=[*USER, *[item.model_dump() for item in first.output], result], **fields)
    assert again.status in ("completed", "incomplete")


def models() -> None:
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id).object == "model"


def answers_have_names() -> None:
    raw = client.chat.completions.with_raw_response.create(model="any", messages=USER, max_tokens=2)
    assert raw.headers["x-request-id"].startswith("req_") and raw.parse().choices


def errors() -> None:
    error = refused(openai.BadRequestError, lambda: create(temperature=-1))
    assert (error.param, error.code, error.type) == ("temperature", "invalid_value", "invalid_request_error"), error.body
    error = refused(openai.BadRequestError, lambda: create(messages=[]))
    assert error.param == "messages"
    error = refused(openai.BadRequestError, lambda: create(messages=[{"role": "user", "content": "word " * 200_000}]))
    assert error.code == "context_length_exceeded"
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "string", "pattern": "["}}}
    assert "response_format" in refused(openai.BadRequestError, lambda: create(response_format=form)).param
    refused(openai.NotFoundError, lambda: client.models.retrieve("missing"))
    refused(openai.BadRequestError, lambda: client.responses.create(model="any", input="x", previous_response_id="resp_1"))
    refused(openai.BadRequestError, lambda: client.embeddings.create(model="any", input=""))


def an_error_in_a_stream_is_raised_before_it() -> None:
    refused(openai.BadRequestError, lambda: list(create(stream=True, top_p=2)))


def cancelled() -> None:
    chunks = create(stream=True, extra_body={"ignore_eos": True, **QUIET})
    next(iter(chunks))
    chunks.close()
    wait_until_idle()
    chat()


def timed_out() -> None:
    hasty = client.with_options(timeout=0.05)
    refused(openai.APITimeoutError, lambda: hasty.chat.completions.create(
        model="any", messages=USER, temperature=1.5, extra_body={"ignore_eos": True, "repetition_penalty": 1.3}))
    wait_until_idle()


run([
    chat, a_seed_gives_the_same_text, several_choices, logprobs_whole_and_in_pieces, stream, stream_helper,
    asynchronous_stream, structured, structured_by_class, tools, tools_in_pieces, tools_there_and_back, completions,
    embeddings, responses, responses_in_pieces, responses_structured, responses_with_tools, models, answers_have_names,
    errors, an_error_in_a_stream_is_raised_before_it, cancelled, timed_out,
])
