// The official `openai` package for Node.js against a running server; `scripts/client_tests.sh` runs it.

import assert from "node:assert/strict";

import OpenAI from "openai";

const [base = "http://127.0.0.1:8000", key = "none"] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: key, maxRetries: 0 });
const messages = [{ role: "user", content: "Pick a fruit" }];
const quiet = { enable_thinking: false };
const SCHEMA = {
  type: "object",
  properties: { kind: { type: "string", enum: ["apple", "pear"] }, count: { type: "integer", minimum: 1, maximum: 9 } },
  required: ["kind", "count"],
  additionalProperties: false,
};
const TOOL = { type: "function", function: { name: "pick", description: "Picks.", parameters: SCHEMA } };
const demand = { tools: [TOOL], tool_choice: "required", parallel_tool_calls: false, max_tokens: 300, ...quiet };

const create = (fields, options) => client.chat.completions.create({ model: "any", messages, ...fields }, options);

function isFruit(text) {
  const { kind, count, ...rest } = JSON.parse(text);
  return ["apple", "pear"].includes(kind) && count >= 1 && count <= 9 && Object.keys(rest).length === 0;
}

async function refused(kind, call) {
  try {
    await call();
  } catch (error) {
    assert.ok(error instanceof kind, `${error.constructor.name} is no ${kind.name}`);
    return error;
  }
  throw new Error(`no ${kind.name}`);
}

async function untilIdle() {
  const end = Date.now() + 20000;
  for (;;) {
    const page = await (await fetch(`${base}/metrics`, { headers: { authorization: `Bearer ${key}` } })).text();
    if (/^pleach_requests_running 0$/m.test(page)) return;
    assert.ok(Date.now() < end, "a request goes on without its client");
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

const CHECKS = {
  async chat() {
    const answer = await create({ max_tokens: 8, temperature: 0 });
    assert.ok(answer.usage.completion_tokens <= 8);
    assert.equal(answer.object, "chat.completion");
  },

  async stream() {
    const fields = { max_tokens: 8, temperature: 0, ...quiet };
    const whole = await create(fields);
    const chunks = [];
    for await (const chunk of await create({ ...fields, stream: true, stream_options: { include_usage: true } })) chunks.push(chunk);
    const text = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
    assert.equal(text, whole.choices[0].message.content ?? "");
    assert.ok(chunks.at(-1).usage && chunks.at(-1).choices.length === 0);
  },

  async streamHelper() {
    const stream = client.chat.completions.stream({ model: "any", messages, max_tokens: 8, ...quiet });
    let text = "";
    stream.on("content", (delta) => (text += delta));
    const final = await stream.finalChatCompletion();
    assert.equal(final.choices[0].message.content ?? "", text);
  },

  async structured() {
    const response_format = { type: "json_schema", json_schema: { name: "fruit", strict: true, schema: SCHEMA } };
    const answer = await create({ max_tokens: 300, response_format, ...quiet });
    assert.ok(isFruit(answer.choices[0].message.content));
  },

  async tools() {
    const answer = await create(demand);
    const [call] = answer.choices[0].message.tool_calls;
    assert.equal(answer.choices[0].finish_reason, "tool_calls");
    assert.ok(isFruit(call.function.arguments));
    const result = { role: "tool", tool_call_id: call.id, content: "42" };
    const again = await create({ messages: [...messages, answer.choices[0].message, result], tools: [TOOL], max_tokens: 4 });
    assert.ok(again.choices.length === 1);
  },

  async toolsInPieces() {
    const final = await client.chat.completions.stream({ model: "any", messages, ...demand }).finalChatCompletion();
    assert.ok(isFruit(final.choices[0].message.tool_calls[0].function.arguments));
  },

  /** The package calls the functions itself and sends back what they gave. */
  async toolsThatRun() {
    let picked = 0;
    const pick = { ...TOOL.function, parse: JSON.parse, function: () => String((picked += 1)) };
    const runner = client.chat.completions.runTools(
      { model: "any", messages, tools: [{ type: "function", function: pick }], tool_choice: { type: "function", function: { name: "pick" } }, max_tokens: 300, ...quiet },
      { maxChatCompletions: 2 },
    );
    await runner.done();
    assert.equal(picked, 1);
  },

  async completions() {
    const answer = await client.completions.create({ model: "any", prompt: ["Hello", "World"], max_tokens: 4 });
    assert.equal(answer.choices.length, 2);
  },

  async embeddings() {
    const { data } = await client.embeddings.create({ model: "any", input: ["Hello", "World"] });
    const length = data[0].embedding.reduce((sum, value) => sum + value * value, 0);
    assert.ok(Math.abs(length - 1) < 1e-4 && data.length === 2);
  },

  async responses() {
    const answer = await client.responses.create({ model: "any", input: "Pick a fruit", max_output_tokens: 8, reasoning: { effort: "none" } });
    assert.ok(["completed", "incomplete"].includes(answer.status) && typeof answer.output_text === "string");
  },

  async responsesInPieces() {
    const stream = client.responses.stream({ model: "any", input: "Pick a fruit", max_output_tokens: 8, reasoning: { effort: "none" } });
    let text = "";
    stream.on("response.output_text.delta", ({ delta }) => (text += delta));
    assert.equal((await stream.finalResponse()).output_text ?? "", text);
  },

  async models() {
    const { data } = await client.models.list();
    assert.equal((await client.models.retrieve(data[0].id)).object, "model");
  },

  async errors() {
    const error = await refused(OpenAI.BadRequestError, () => create({ temperature: -1 }));
    assert.deepEqual([error.param, error.code], ["temperature", "invalid_value"]);
    await refused(OpenAI.BadRequestError, () => create({ messages: [] }));
    await refused(OpenAI.NotFoundError, () => client.models.retrieve("missing"));
  },

  async cancelled() {
    const stream = await create({ stream: true, ignore_eos: true, ...quiet });
    for await (const _ of stream) break;
    await untilIdle();
    const control = new AbortController();
    const asked = create({ ignore_eos: true, temperature: 1.5 }, { signal: control.signal });
    setTimeout(() => control.abort(), 50);
    await refused(OpenAI.APIUserAbortError, () => asked);
    await untilIdle();
    await CHECKS.chat();
  },
};

let failed = 0;
for (const [name, check] of Object.entries(CHECKS)) {
  try {
    await check();
    console.log(`ok      ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`failed  ${name}: ${error.message}`);
  }
}
console.log(`${Object.keys(CHECKS).length - failed} passed, ${failed} failed`);
process.exitCode = failed ? 1 : 0;
