#!/usr/bin/env python3
"""The official `anthropic` package for Python against a running server; `scripts/client_tests.sh` runs it."""

from __future__ import annotations

import json

import anthropic

from checks import BASE, KEY, SCHEMA, USER, is_fruit, refused, run, wait_until_idle

client = anthropic.Anthropic(base_url=BASE, api_key=KEY, max_retries=0)
TOOL = {"name": "pick", "description": "Picks.", "input_schema": SCHEMA}
QUIET = {"thinking": {"type": "disabled"}}
DEMAND = {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "pick"}, "max_tokens": 300, **QUIET}


def create(**fields):
    return client.messages.create(model="any", messages=fields.pop("messages", USER), **fields)


def message() -> None:
    answer = create(max_tokens=8, system="Be brief.")
    assert answer.stop_reason in ("max_tokens", "end_turn") and answer.usage.output_tokens <= 8
    assert answer.type == "message" and answer.role == "assistant"


def blocks_and_their_marks() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    system = [{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, {"type": "text", "text": "Be brief.", **mark}]
    answer = create(max_tokens=4, system=system, messages=[{"role": "user", "content": [{"type": "text", "text": "Hi", **mark}]}],
                    metadata={"user_id": "u"}, stop_sequences=["\n\n"])
    assert answer.usage.cache_read_input_tokens is not None


def stream() -> None:
    with client.messages.stream(model="any", max_tokens=8, messages=USER, **QUIET) as events:
        text = "".join(events.text_stream)
        final = events.get_final_message()
    assert text == "".join(block.text for block in final.content if block.type == "text")
    assert final.usage.output_tokens <= 8 and final.stop_reason in ("max_tokens", "end_turn")


def events_come_in_order() -> None:
    kinds = [event.type for event in create(max_tokens=8, stream=True, **QUIET)]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"], kinds
    assert kinds.count("content_block_start") == kinds.count("content_block_stop")


async def asynchronous_stream() -> None:
    async with anthropic.AsyncAnthropic(base_url=BASE, api_key=KEY, max_retries=0) as other:
        async with other.messages.stream(model="any", max_tokens=8, messages=USER) as events:
            final = await events.get_final_message()
    # What comes from the cache is counted apart.
    assert final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0) > 0


def thoughts_are_blocks_of_their_own() -> None:
    with client.messages.stream(
        model="any", max_tokens=1200, messages=USER, thinking={"type": "enabled", "budget_tokens": 1024}
    ) as events:
        final = events.get_final_message()
    assert {block.type for block in final.content} <= {"thinking", "text"}


def tools() -> None:
    answer = create(**DEMAND)
    block = answer.content[-1]
    assert answer.stop_reason == "tool_use" and block.type == "tool_use" and is_fruit(block.input), answer


def tools_in_pieces_there_and_back() -> None:
    with client.messages.stream(model="any", messages=USER, **DEMAND) as events:
        final = events.get_final_message()
    block = final.content[-1]
    assert block.type == "tool_use" and is_fruit(block.input), final
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": block.id, "content": "42"}]}
    turn = {"role": "assistant", "content": [one.model_dump() for one in final.content]}
    again = create(messages=[*USER, turn, result], max_tokens=4, tools=[TOOL])
    assert again.stop_reason in ("max_tokens", "end_turn", "tool_use")


def structured() -> None:
    answer = create(max_tokens=300, extra_body={"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}, **QUIET)
    assert is_fruit(json.loads(answer.content[-1].text))


def the_beginning_is_kept() -> None:
    turn = {"role": "assistant", "content": "I pick the"}
    assert create(max_tokens=4, messages=[*USER, turn]).usage.output_tokens <= 4


def tokens_are_counted() -> None:
    short = client.messages.count_tokens(model="any", messages=USER).input_tokens
    words = [{"role": "user", "content": "Pick a fruit " * 20}]
    # A template may bring instructions of its own in place of none, and may leave tools out.
    long = client.messages.count_tokens(model="any", messages=words, system="Be brief.", tools=[TOOL]).input_tokens
    assert 0 < short < long


def beta_is_the_same() -> None:
    answer = client.beta.messages.create(model="any", max_tokens=4, messages=USER, betas=["any-2025-01-01"])
    assert answer.usage.output_tokens <= 4


def errors() -> None:
    error = refused(anthropic.BadRequestError, lambda: create(max_tokens=0))
    assert error.body["type"] == "error" and error.body["error"]["type"] == "invalid_request_error"
    refused(anthropic.BadRequestError, lambda: create(max_tokens=4, messages=[]))
    refused(anthropic.BadRequestError, lambda: create(max_tokens=4, messages=[{"role": "user", "content": "word " * 200_000}]))
    refused(anthropic.BadRequestError, lambda: list(create(max_tokens=4, stream=True, extra_body={"temperature": -1})))
    image = {"type": "image", "source": {"type": "url", "url": "http://169.254.169.254/"}}
    refused(anthropic.BadRequestError, lambda: create(max_tokens=4, messages=[{"role": "user", "content": [image]}]))


def cancelled() -> None:
    with client.messages.stream(model="any", max_tokens=100_000, messages=USER, extra_body={"ignore_eos": True}) as events:
        next(iter(events))
    wait_until_idle()
    message()


run([
    message, blocks_and_their_marks, stream, events_come_in_order, asynchronous_stream, thoughts_are_blocks_of_their_own,
    tools, tools_in_pieces_there_and_back, structured, the_beginning_is_kept, tokens_are_counted, beta_is_the_same, errors,
    cancelled,
])
