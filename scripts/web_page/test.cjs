// Drives the page as a person would. Arguments: the `pleach` binary, Chromium, the folder for screenshots.

const assert = require("node:assert/strict");
const { spawn } = require("node:child_process");
const { createInterface } = require("node:readline");
const path = require("node:path");
const { chromium } = require("playwright-core");

const [binary, browserPath, pictures] = process.argv.slice(2);
const MODEL = "models/pleach-mini";

/** Starts a server and waits for the line that says where it listens. */
async function serve() {
  const child = spawn(binary, ["serve", "--model", MODEL, "--port", "0", "--log", "off"], { stdio: ["ignore", "pipe", "inherit"] });
  for await (const line of createInterface({ input: child.stdout })) {
    const found = /listening on (\S+)/.exec(line);
    if (found) return { child, base: found[1] };
  }
  throw new Error("the server ended before it listened");
}

async function metric(base, name) {
  const page = await (await fetch(`${base}/metrics`)).text();
  return Number(new RegExp(`^${name} (\\S+)$`, "m").exec(page)[1]);
}

async function until(what, holds) {
  const end = Date.now() + 20000;
  while (!(await holds())) {
    if (Date.now() > end) throw new Error(`${what}: not within 20 seconds`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

const text = (page, selector) => page.locator(selector).innerText();

async function ask(page, words) {
  await page.locator("#prompt").fill(words);
  await page.keyboard.press("Enter");
}

async function answered(page, count) {
  await page.locator(".turn.assistant .foot").nth(count - 1).waitFor();
  await page.locator("#send").waitFor({ state: "visible" });
}

/** The page answers the next request itself with these pieces of a stream. */
async function script(page, pieces) {
  const chunk = (delta) => `data: ${JSON.stringify({ choices: [{ index: 0, delta }] })}\n\n`;
  const body = pieces.map(chunk).join("") + "data: [DONE]\n\n";
  await page.route("**/v1/chat/completions", (route) => route.fulfill({ contentType: "text/event-stream", body }), { times: 1 });
}

async function refuse(page, status, message) {
  const body = JSON.stringify({ error: { message, type: "invalid_request_error", param: null, code: null } });
  await page.route("**/v1/chat/completions", (route) => route.fulfill({ status, contentType: "application/json", body }), { times: 1 });
}

const TESTS = {
  async "the model introduces itself"({ page }) {
    await page.locator("#facts dd").first().waitFor();
    assert.equal(await text(page, "#model"), "pleach-mini");
    assert.match(await text(page, "#facts"), /Context\s+[\d,]+ tokens/);
    assert.equal(await page.evaluate(() => document.activeElement.id), "prompt");
  },

  async "an answer streams in, with what it took"({ page }) {
    await page.locator("details:has(#system) summary").click();
    await page.locator("#temperature").fill("0");
    await ask(page, "Write a python function to add two numbers");
    await answered(page, 1);
    assert.ok((await text(page, ".turn.assistant .text")).trim().length > 0);
    for (const id of ["rate", "per-pass", "written", "prompt-tokens", "first"]) {
      assert.match(await text(page, `#${id}`), /^[\d.,]+( ms)?$/, id);
    }
  },

  async "the next turn finds what was read"({ page }) {
    await ask(page, "Now write one that multiplies");
    await answered(page, 2);
    assert.ok(Number(await text(page, "#cached")) > 0, await text(page, "#cached"));
  },

  async "Escape stops the answer and frees the server"({ page, base }) {
    await page.route("**/v1/chat/completions", (route) => {
      const body = { ...route.request().postDataJSON(), ignore_eos: true, temperature: 1.5 };
      return route.continue({ postData: JSON.stringify(body) });
    }, { times: 1 });
    const gone = await metric(base, "pleach_clients_gone_total");
    await ask(page, "Write without end");
    await page.locator("#stop").waitFor({ state: "visible" });
    await page.locator(".turn.writing .text").filter({ hasText: /\S/ }).waitFor();
    await page.keyboard.press("Escape");
    await answered(page, 3);
    assert.equal(await text(page, "#status"), "Stopped.");
    await until("the request ends", async () => (await metric(base, "pleach_requests_running")) === 0);
    assert.equal(await metric(base, "pleach_clients_gone_total"), gone + 1);
  },

  async "what a model writes is text, whatever it looks like"({ page }) {
    await script(page, [
      { reasoning_content: "A <b>thought</b>." },
      { content: "# Title\n\nSome **bold**, *slanted* and `code <i>` with [a link](https://example.org/) and\n" },
      { content: "[a trap](javascript:window.caught=1) <img src=x onerror=window.caught=1>\n\n" },
      { content: "<script>window.caught=1</scr" },
      { content: "ipt>\n\n- one\n- two\n  - inner\n\n1. first\n2. second\n\n> quoted\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nif a < b:\n" },
      { content: "    print('</script><b>')\n```\n\n---\n\nEnd." },
    ]);
    await ask(page, "Show me everything");
    await answered(page, 4);
    const last = page.locator(".turn.assistant").last();
    const found = await last.locator(".text").evaluate((home) => ({
      kinds: [...home.children].map((child) => child.tagName.toLowerCase()),
      links: [...home.querySelectorAll("a")].map((link) => link.href),
      bad: home.querySelectorAll("img, script, i, b, iframe").length,
      code: home.querySelector("pre").innerText,
      text: home.innerText,
    }));
    assert.deepEqual(found.kinds, ["h1", "p", "p", "ul", "ol", "blockquote", "div", "div", "hr", "p"]);
    assert.deepEqual(found.links, ["https://example.org/"]);
    assert.equal(found.bad, 0);
    assert.equal(found.code, "if a < b:\n    print('</script><b>')");
    assert.ok(found.text.includes("<img src=x onerror=window.caught=1>") && found.text.includes("javascript:window.caught=1"));
    assert.equal(await page.evaluate(() => window.caught), undefined);
    assert.equal(await last.locator("details div").textContent(), "A <b>thought</b>.");
  },

  async "an error is shown, and asking again mends it"({ page }) {
    await refuse(page, 429, "the server runs 4 requests and 64 wait: try again in a moment");
    await ask(page, "Say yes");
    await page.locator("#error").waitFor({ state: "visible" });
    assert.equal(await text(page, "#error-text"), "the server runs 4 requests and 64 wait: try again in a moment");
    await page.locator("#retry").click();
    await answered(page, 5);
    assert.equal(await page.locator("#error").isVisible(), false);
  },

  async "a stream that breaks off says so"({ page }) {
    await page.route("**/v1/chat/completions", (route) => route.fulfill({ contentType: "text/event-stream", body: "" }), { times: 1 });
    await ask(page, "Break off");
    await page.locator("#error").waitFor({ state: "visible" });
    assert.equal(await text(page, "#error-text"), "The connection ended before the answer was complete.");
    await page.locator("#dismiss").click();
  },

  async "a server that asks for a key gets the field for it"({ page }) {
    await refuse(page, 401, "this server asks for a key: send `Authorization: Bearer KEY`");
    await ask(page, "Let me in");
    await page.locator("#error").waitFor({ state: "visible" });
    await until("the field has the focus", () => page.evaluate(() => document.activeElement.id === "key"));
    await page.locator("#dismiss").click();
  },

  async "a new chat forgets the old one"({ page }) {
    await page.locator("#fresh").click();
    assert.equal(await page.locator(".turn").count(), 0);
    assert.ok(await page.locator("#empty").isVisible());
    assert.equal(await page.evaluate(() => document.activeElement.id), "prompt");
  },

  async "it fits narrow windows and the dark"({ page }) {
    await page.setViewportSize({ width: 380, height: 700 });
    await page.emulateMedia({ colorScheme: "dark" });
    await page.reload();
    await page.locator("#facts dd").first().waitFor({ state: "attached" });
    await ask(page, "Write a python function to merge two sorted lists");
    await answered(page, 1);
    const { wide, ground } = await page.evaluate(() => ({
      wide: document.documentElement.scrollWidth > innerWidth,
      ground: getComputedStyle(document.body).backgroundColor,
    }));
    assert.equal(wide, false, "something is wider than the window");
    assert.equal(ground, "rgb(22, 24, 26)");
  },
};

/** Screenshots are taken after these. */
const PICTURES = {
  "the next turn finds what was read": "light.png",
  "what a model writes is text, whatever it looks like": "markdown.png",
  "an error is shown, and asking again mends it": "again.png",
  "it fits narrow windows and the dark": "narrow-dark.png",
};

async function main() {
  const { child, base } = await serve();
  const browser = await chromium.launch({ executablePath: browserPath, args: ["--no-sandbox", "--disable-gpu"] });
  let failed = 0;
  try {
    const page = await browser.newPage({ viewport: { width: 1180, height: 780 }, colorScheme: "light" });
    const complaints = [];
    page.on("pageerror", (error) => complaints.push(error.message));
    // The browser itself writes a line for every answer that is an error.
    page.on("console", (line) => {
      if (line.type() === "error" && !/Failed to load resource/.test(line.text())) complaints.push(line.text());
    });
    page.setDefaultTimeout(30000);
    await page.goto(base);
    for (const [name, test] of Object.entries(TESTS)) {
      try {
        await test({ page, base });
        assert.deepEqual(complaints.splice(0), [], "the page or its policy complained");
        console.log(`ok      ${name}`);
      } catch (error) {
        failed += 1;
        console.log(`failed  ${name}: ${error.message}`);
        await page.screenshot({ path: path.join(pictures, `failed-${failed}.png`) });
      }
      if (PICTURES[name]) await page.screenshot({ path: path.join(pictures, PICTURES[name]) });
    }
  } finally {
    await browser.close();
    child.kill();
  }
  console.log(`${Object.keys(TESTS).length - failed} passed, ${failed} failed`);
  process.exitCode = failed ? 1 : 0;
}

void main();
