// The conversation: what is asked, how the answer comes in, what it took.

const at = (id) => document.getElementById(id);
const log = at("log");
const turns = [];
let answering = null;

/** What the server says is wrong. */
class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers() {
  const key = at("key").value.trim();
  return { "content-type": "application/json", ...(key && { authorization: `Bearer ${key}` }) };
}

async function ask(path, options = {}) {
  const response = await fetch(path, { ...options, headers: headers() });
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw new Refusal(response.status, body?.error?.message ?? `The server answered ${response.status}.`);
}

/** The data of each event of a stream. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const pieces = (rest + value).split("\n\n");
    rest = pieces.pop();
    for (const piece of pieces) {
      // A piece that begins with a colon only says that the server is still there.
      if (piece.startsWith("data: ")) yield piece.slice("data: ".length);
    }
  }
}

function request() {
  const system = at("system").value.trim();
  const thinking = at("thinking").value;
  const number = (id) => (at(id).value === "" ? undefined : Number(at(id).value));
  return {
    messages: [...(system ? [{ role: "system", content: system }] : []), ...turns.map(({ message }) => message)],
    temperature: number("temperature"),
    max_tokens: number("max-tokens"),
    enable_thinking: thinking ? thinking === "on" : undefined,
    stream: true,
    stream_options: { include_usage: true },
    return_progress: true,
  };
}

/** Asks for an answer to the turns so far and shows it as it comes. */
async function answer() {
  const turn = newTurn("assistant");
  const control = new AbortController();
  answering = control;
  turn.started = performance.now();
  turn.home.classList.add("writing");
  refresh();
  say("Waiting for the server …");
  try {
    const body = JSON.stringify(request());
    // Only now, as the request must end with what the person wrote.
    turns.push(turn);
    const response = await ask("v1/chat/completions", { method: "POST", body, signal: control.signal });
    for await (const data of events(response)) {
      if (data === "[DONE]") turn.complete = true;
      else take(turn, JSON.parse(data));
    }
    if (!turn.complete) throw new Refusal(0, "The connection ended before the answer was complete.");
  } catch (error) {
    if (control.signal.aborted) turn.note = "stopped";
    else show(error);
  }
  settle(turn);
}

function take(turn, chunk) {
  if (chunk.error) throw new Refusal(500, chunk.error.message);
  const progress = chunk.prompt_progress;
  if (progress && progress.processed < progress.total) say(`Reading the prompt: ${progress.processed} of ${progress.total} tokens`);
  const choice = chunk.choices?.[0];
  const thought = choice?.delta?.reasoning_content;
  const text = choice?.delta?.content;
  if ((thought || text) && turn.first === undefined) turn.first = performance.now() - turn.started;
  if (thought) grow(turn, "reasoning_content", thought);
  if (text) grow(turn, "content", text);
  if (choice?.finish_reason === "length") turn.note = "cut at the limit of tokens";
  if (chunk.usage) report(turn, chunk);
}

function grow(turn, part, text) {
  turn.message[part] = (turn.message[part] ?? "") + text;
  if (turn.drawing) return;
  turn.drawing = requestAnimationFrame(() => draw(turn));
}

/** Brings the page up to what has come of a turn. */
function draw(turn) {
  turn.drawing = null;
  const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  const thought = turn.message.reasoning_content;
  if (thought) {
    turn.thought.hidden = false;
    turn.thought.lastElementChild.textContent = thought.trim();
    turn.thought.firstElementChild.textContent = turn.message.content ? "Thought" : "Thinking …";
  }
  turn.rendered.show(turn.message.content);
  if (answering) {
    const seconds = (performance.now() - turn.started) / 1000;
    say(`${turn.message.content ? "Writing" : "Thinking"} … ${seconds.toFixed(0)} s`);
  }
  if (follows) log.scrollTop = log.scrollHeight;
}

function settle(turn) {
  answering = null;
  cancelAnimationFrame(turn.drawing);
  turn.home.classList.remove("writing");
  const isEmpty = !turn.message.content && !turn.message.reasoning_content;
  if (!turns.includes(turn)) {
    // A new chat has begun meanwhile.
    turn.home.remove();
  } else if (isEmpty && !turn.complete) {
    turns.pop();
    turn.home.remove();
  } else {
    draw(turn);
    foot(turn);
  }
  say(turn.note === "stopped" ? "Stopped." : "");
  refresh();
  // An error may have led elsewhere.
  if (at("error").hidden) at("prompt").focus();
}

function newTurn(role, content = "") {
  const text = element("div", { className: "text" });
  const home = element("article", { className: `turn ${role}` });
  home.setAttribute("aria-label", role === "user" ? "You" : "Model");
  const turn = { message: { role, content }, home };
  if (role === "user") {
    text.textContent = content;
  } else {
    turn.rendered = new Rendered(text);
    turn.thought = element("details", { className: "thought", hidden: true }, element("summary"), element("div"));
    home.append(turn.thought);
  }
  home.append(text);
  log.append(home);
  log.scrollTop = log.scrollHeight;
  return turn;
}

/** What stands under an answer. Only the last one can be asked for again. */
function foot(turn) {
  log.querySelectorAll(".again").forEach((button) => button.remove());
  const copy = element("button", { type: "button", textContent: "Copy" });
  copy.addEventListener("click", () => copyText(copy, turn.message.content));
  const again = element("button", { type: "button", className: "again", textContent: "Ask again" });
  again.addEventListener("click", retry);
  const line = element("div", { className: "foot" }, copy, again);
  if (turn.speed) line.append(element("span", { textContent: turn.speed }));
  if (turn.note) line.append(element("span", { textContent: turn.note }));
  turn.home.append(line);
}

const whole = (number) => number.toLocaleString("en", { maximumFractionDigits: 0 });
const short = (number) => number.toLocaleString("en", { maximumFractionDigits: number < 100 ? 1 : 0 });

function report(turn, { usage, timings }) {
  const passes = usage.spec_verify_ct;
  const { accepted_prediction_tokens: accepted, rejected_prediction_tokens: rejected } = usage.completion_tokens_details;
  // A pass gives one token and the guesses that came true.
  const perPass = passes > 0 ? (passes + accepted) / passes : null;
  const guesses = accepted + rejected;
  at("rate").textContent = timings.predicted_per_second > 0 ? short(timings.predicted_per_second) : "–";
  at("per-pass").textContent = perPass === null ? "–" : perPass.toFixed(2);
  at("accepted").textContent = guesses ? `${whole(accepted)} of ${whole(guesses)}` : "none made";
  at("written").textContent = whole(usage.completion_tokens);
  at("prompt-tokens").textContent = whole(usage.prompt_tokens);
  at("cached").textContent = whole(usage.prompt_tokens_details.cached_tokens);
  at("prompt-rate").textContent = timings.prompt_per_second > 0 ? short(timings.prompt_per_second) : "all cached";
  at("first").textContent = turn.first === undefined ? "–" : `${whole(turn.first)} ms`;
  const rate = timings.predicted_per_second > 0 ? `, ${short(timings.predicted_per_second)} a second` : "";
  turn.speed = `${whole(usage.completion_tokens)} tokens${rate}`;
}

function say(text) {
  if (at("status").textContent !== text) at("status").textContent = text;
}

function show(error) {
  const isLost = error instanceof TypeError;
  at("error-text").textContent = isLost ? "The server cannot be reached. Is it still running?" : error.message;
  at("error").hidden = false;
  log.scrollTop = log.scrollHeight;
  if (error.status === 401) {
    at("key").closest("details").open = true;
    at("key").focus();
  }
}

function refresh() {
  const busy = answering !== null;
  at("send").hidden = busy;
  at("stop").hidden = !busy;
  at("empty").hidden = turns.length > 0 || busy;
  log.querySelectorAll(".again").forEach((button) => (button.disabled = busy));
}

function send() {
  const text = at("prompt").value.trim();
  if (answering || !text) return;
  at("error").hidden = true;
  turns.push(newTurn("user", text));
  at("prompt").value = "";
  fit();
  void answer();
}

/** Asks for the last answer again, or for the first time if there was none. */
function retry() {
  if (answering) return;
  at("error").hidden = true;
  while (turns.at(-1)?.message.role === "assistant") turns.pop().home.remove();
  if (turns.length > 0) void answer();
  else void meet();
}

function begin() {
  answering?.abort();
  turns.splice(0).forEach(({ home }) => home.remove());
  at("error").hidden = true;
  refresh();
  at("prompt").focus();
}

/** Makes the field as high as its text. */
function fit() {
  at("prompt").style.height = "auto";
  at("prompt").style.height = `${at("prompt").scrollHeight + 2}px`;
}

const THEMES = ["auto", "light", "dark"];

function theme(name) {
  document.documentElement.dataset.theme = name;
  at("theme").textContent = `Theme: ${name}`;
  localStorage.setItem("theme", name);
}

/** Asks for the model until it is there. */
async function meet() {
  try {
    const { data } = await (await ask("v1/models")).json();
    describe(data[0]);
    say("");
  } catch (error) {
    if (error.status !== 503) return show(error);
    at("model").textContent = "The model is being loaded …";
    setTimeout(meet, 1000);
  }
}

function describe({ id, context_length, meta }) {
  at("model").textContent = id;
  at("model").title = id;
  document.title = `${id} – Pleach`;
  const millions = meta.n_params / 1e6;
  const facts = {
    Name: id,
    Architecture: meta.architecture,
    Parameters: millions >= 1000 ? `${short(millions / 1000)} billion` : `${short(millions)} million`,
    Weights: `${meta.quantization}, ${short(meta.size / 2 ** 20)} MiB`,
    Context: `${whole(context_length)} tokens`,
    Drafting: meta.drafters.join(", ") || "none",
  };
  const rows = Object.entries(facts).flatMap(([name, value]) => [
    element("dt", { textContent: name }),
    element("dd", { textContent: value }),
  ]);
  at("facts").replaceChildren(...rows);
}

at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
at("prompt").addEventListener("input", fit);
at("prompt").addEventListener("keydown", (event) => {
  // While an input method composes a character, Enter belongs to it.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") answering?.abort();
});
at("stop").addEventListener("click", () => answering?.abort());
at("fresh").addEventListener("click", begin);
at("retry").addEventListener("click", retry);
at("dismiss").addEventListener("click", () => (at("error").hidden = true));
at("theme").addEventListener("click", () => {
  const next = THEMES.indexOf(document.documentElement.dataset.theme) + 1;
  theme(THEMES[next % THEMES.length]);
});
at("key").value = sessionStorage.getItem("key") ?? "";
at("key").addEventListener("change", () => {
  sessionStorage.setItem("key", at("key").value.trim());
  at("error").hidden = true;
  void meet();
});

const stored = localStorage.getItem("theme");
theme(THEMES.includes(stored) ? stored : "auto");
// Where there is little room, the conversation comes first.
if (matchMedia("(max-width: 56rem)").matches) document.querySelectorAll("aside details").forEach((one) => (one.open = false));
at("prompt").focus();
void meet();
