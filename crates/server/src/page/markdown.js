// Markdown to elements. What the model wrote only ever becomes text of a node, never markup, and links lead only where
// `href` allows.

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

/** An address that a link may lead to, or null. */
function href(text) {
  try {
    const url = new URL(text);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

// Code first: nothing inside it means anything.
const INLINE = /(`+)([^`]|[^`].*?[^`])\1(?!`)|\[([^\]\n]{1,300})\]\((\S{1,2000}?)\)|\*\*(?=\S)(.+?\S?)\*\*|\*(?=[^\s*])([^*\n]*[^\s*])\*|~~(?=\S)(.+?)~~|(https?:\/\/[^\s<>"')\]]+)/s;

// In longer runs, and deeper inside others, marks stay text: looking for their ends would take too long.
const MOST_CHARACTERS = 20000;
const MOST_DEPTH = 8;

/** The nodes of a run of text. */
function inline(text, depth = 0) {
  const nodes = [];
  const looks = depth < MOST_DEPTH && text.length < MOST_CHARACTERS;
  while (text) {
    const found = looks ? INLINE.exec(text) : null;
    if (!found) break;
    if (found.index > 0) nodes.push(text.slice(0, found.index));
    const [whole, , code, label, target, bold, italic, struck, bare] = found;
    const address = href(target ?? bare ?? "");
    if (code !== undefined) nodes.push(element("code", { textContent: code }));
    else if (bold !== undefined) nodes.push(element("strong", {}, ...inline(bold, depth + 1)));
    else if (italic !== undefined) nodes.push(element("em", {}, ...inline(italic, depth + 1)));
    else if (struck !== undefined) nodes.push(element("s", {}, ...inline(struck, depth + 1)));
    else if (address) nodes.push(link(address, label, bare, depth));
    else nodes.push(whole);
    text = text.slice(found.index + whole.length);
  }
  if (text) nodes.push(text);
  return nodes;
}

function link(address, label, bare, depth) {
  const children = label === undefined ? [bare] : inline(label, depth + 1);
  return element("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, ...children);
}

const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^(#{1,6})\s+(.*)$/s;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/s;
const QUOTE = /^ {0,3}> ?(.*)$/;
// Of a line without blanks around it.
const TABLE_RULE = /^\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?$/;

/** Splits a text into blocks: `{ kind, lines }`, each made of whole lines. A block that another follows never changes. */
function blocks(text) {
  const lines = text.split("\n");
  const found = [];
  for (let at = 0; at < lines.length; ) {
    const from = at;
    const kind = kindOf(lines, at);
    at = endOf(kind, lines, at);
    if (kind !== "blank") found.push({ kind, lines: lines.slice(from, at) });
  }
  return found;
}

function kindOf(lines, at) {
  const line = lines[at];
  if (!line.trim()) return "blank";
  if (FENCE.test(line)) return "code";
  if (HEADING.test(line)) return "heading";
  if (RULE.test(line)) return "rule";
  if (QUOTE.test(line)) return "quote";
  if (ITEM.test(line)) return "list";
  if (line.includes("|") && TABLE_RULE.test((lines[at + 1] ?? "").trim())) return "table";
  return "paragraph";
}

function endOf(kind, lines, at) {
  const while_ = (keeps) => {
    while (++at < lines.length && keeps(lines[at])) continue;
    return at;
  };
  switch (kind) {
    case "code": {
      const fence = FENCE.exec(lines[at])[1];
      const closes = (line) => line.trim().startsWith(fence) && !line.trim().replaceAll(fence[0], "");
      return Math.min(while_((line) => !closes(line)) + 1, lines.length);
    }
    case "quote":
      return while_((line) => QUOTE.test(line));
    case "table":
      return while_((line) => line.includes("|"));
    case "list":
      return while_((line) => ITEM.test(line) || (/^\s{2,}\S/.test(line) && !FENCE.test(line)));
    case "paragraph":
      return while_((_) => kindOf(lines, at) === "paragraph");
    default:
      return at + 1;
  }
}

/** A heading without the marks that may close it. An expression for them would take the square of its length. */
function withoutClosingMarks(text) {
  const trimmed = text.trimEnd();
  let end = trimmed.length;
  while (trimmed[end - 1] === "#") end -= 1;
  return trimmed.slice(0, end).trimEnd();
}

function block({ kind, lines }, depth = 0) {
  switch (kind) {
    case "code":
      return codeBlock(lines);
    case "heading": {
      const [, marks, text] = HEADING.exec(lines[0]);
      return element(`h${marks.length}`, {}, ...inline(withoutClosingMarks(text)));
    }
    case "rule":
      return element("hr");
    case "quote": {
      const text = lines.map((line) => QUOTE.exec(line)[1]).join("\n");
      const inner = depth < MOST_DEPTH ? blocks(text).map((one) => block(one, depth + 1)) : [text];
      return element("blockquote", {}, ...inner);
    }
    case "table":
      return table(lines);
    case "list":
      return list(lines, depth);
    default:
      return element("p", {}, ...broken(lines));
  }
}

/** Lines of a paragraph; a line break stays one. */
function broken(lines) {
  const nodes = inline(lines.join("\n").trim());
  return nodes.flatMap((node) => {
    if (typeof node !== "string") return [node];
    return node.split("\n").flatMap((line, at) => (at ? [element("br"), line] : [line]));
  });
}

function codeBlock(lines) {
  const language = FENCE.exec(lines[0])[2].trim();
  const closed = lines.length > 1 && FENCE.test(lines.at(-1)) && !FENCE.exec(lines.at(-1))[2].trim();
  const text = lines.slice(1, closed ? -1 : undefined).join("\n");
  const copy = element("button", { type: "button", textContent: "Copy" });
  copy.addEventListener("click", () => copyText(copy, text));
  const bar = element("div", { className: "bar" }, element("span", { textContent: language.slice(0, 40) || "text" }), copy);
  const code = element("pre", { tabIndex: 0 }, element("code", { textContent: text }));
  return element("div", { className: "code" }, bar, code);
}

function table(lines) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const row = (name, line) => element("tr", {}, ...cells(line).map((cell) => element(name, {}, ...inline(cell))));
  const head = element("thead", {}, row("th", lines[0]));
  const body = element("tbody", {}, ...lines.slice(2).map((line) => row("td", line)));
  return element("div", { className: "table" }, element("table", {}, head, body));
}

/** A list; lines that stand further in than the first belong to the item before them. */
function list(lines, depth) {
  const [, margin, number] = ITEM.exec(lines[0]);
  const made = number === undefined ? element("ul") : element("ol", { start: Number(number) });
  const items = [];
  for (const line of lines) {
    const found = ITEM.exec(line);
    if (found && found[1].length <= margin.length + 1) items.push([found[3]]);
    else items.at(-1).push(line);
  }
  for (const [first, ...rest] of items) {
    const item = element("li", {}, ...inline(first));
    const inner = rest.map((line) => line.replace(/^\s{2,4}/, "")).join("\n");
    if (depth < MOST_DEPTH) item.append(...blocks(inner).map((one) => block(one, depth + 1)));
    else item.append(inner);
    made.append(item);
  }
  return made;
}

/** Shows a growing text: only blocks that have changed are made anew. */
class Rendered {
  constructor(home) {
    this.home = home;
    this.shown = [];
  }

  show(text) {
    const found = blocks(text);
    const sources = found.map(({ lines }) => lines.join("\n"));
    let same = 0;
    while (same < sources.length && sources[same] === this.shown[same]) same += 1;
    while (this.home.childNodes.length > same) this.home.lastChild.remove();
    this.home.append(...found.slice(same).map((one) => block(one)));
    this.shown = sources;
  }
}

async function copyText(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "No access";
  }
  setTimeout(() => (button.textContent = "Copy"), 1500);
}
