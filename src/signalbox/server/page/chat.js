// SPDX-License-Identifier: Apache-2.0
// ---- Text: the part of Markdown that models write, as nodes; nothing is taken for HTML.

function blocksOf(text) {
  const blocks = [];
  let open = null;
  for (const line of text.split("\n")) {
    const fence = line.trimStart().startsWith("```");
    if (open?.fence) {
      if (fence) open = null;
      else open.lines.push(line);
      continue;
    }
    if (fence || !line.trim()) open = null;
    if (!fence && !line.trim()) continue;
    if (!open) blocks.push((open = { fence, lines: [] }));
    if (!fence) open.lines.push(line);
  }
  return blocks;
}

function inline(text) {
  return text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/).map((piece, index) => {
    if (index % 2 === 0) return piece;
    return piece.startsWith("`")
      ? make("code", { textContent: piece.slice(1, -1) })
      : make("b", { textContent: piece.slice(2, -2) });
  });
}

function blockNode({ fence, lines }) {
  if (fence) return make("pre", { textContent: lines.join("\n") });
  const heading = lines.length === 1 && lines[0].match(/^#{1,6} (.*)/);
  if (heading) return make("h3", {}, ...inline(heading[1]));
  const items = lines.map((line) => line.match(/^\s*([-*•]|\d+[.)]) (.*)/));
  if (!items.every(Boolean)) return make("p", {}, ...inline(lines.join("\n")));
  return make("ul", {}, ...items.map(([, mark, item]) => {
    const node = make("li", {}, ...inline(item));
    node.dataset.mark = /\d/.test(mark) ? mark : "•";
    return node;
  }));
}

// Only blocks that changed are made anew: a long answer costs what it grows by.
function showText(node, text) {
  const blocks = blocksOf(text);
  while (node.children.length > blocks.length) node.lastChild.remove();
  blocks.forEach((block, index) => {
    const source = JSON.stringify(block);
    const old = node.children[index];
    if (old?.source === source) return;
    const fresh = Object.assign(blockNode(block), { source });
    if (old) old.replaceWith(fresh);
    else node.append(fresh);
  });
}

// ---- Chat.

const SAMPLES = [
  "Tom has 12 apples. Then Tom buys 7 more. How many apples does Tom have now?",
  "Ida has 6 baskets with 8 buttons in each. Ida gets 38 buttons from the museum. How many buttons does " +
    "Ida have now?",
  "Max has 44 coins and Ben has 33 more than Max. Ben splits them equally among 7 friends and counts one share. " +
    "What is the final number of coins?",
];

const chat = { messages: [], answering: null };  // answering: what can abort it

function parseTools(text) {
  try {
    return JSON.parse(text);
  } catch ({ message }) {
    throw new Error(`Settings, tools: ${message}`);
  }
}

function settings() {
  const chosen = { chat_template_kwargs: { enable_thinking: $("thinking").checked } };
  for (const id of ["temperature", "max_tokens"]) {
    if ($(id).value !== "") chosen[id] = Number($(id).value);
  }
  const tools = $("tools").value.trim();
  if (tools) chosen.tools = parseTools(tools);
  return chosen;
}

// What has come of an answer so far, and its nodes.
class Answer {
  constructor() {
    this.message = { role: "assistant", content: "" };
    this.reasoning = "";
    this.sent = performance.now();
    this.tokens = { first: 0, all: 0 };
    this.thoughts = make("div", { className: "text" });
    this.summary = make("summary", { textContent: "Thinking" });
    this.folded = make("details", { className: "thoughts", hidden: true }, this.summary, this.thoughts);
    this.content = make("div", { className: "text" });
    this.calls = make("div");
    this.footer = make("footer", { className: "note" });
    this.node = make("article", { className: "answer" }, this.folded, this.content, this.calls, this.footer);
    this.node.setAttribute("aria-busy", "true");
  }

  take(event) {
    if (event.error) throw new Error(event.error.message);
    const now = performance.now();
    if (event.usage) this.count(event.usage.completion_tokens, now);
    const [choice] = event.choices;
    if (!choice) return;
    const { delta } = choice;
    this.reasoning += delta.reasoning_content ?? delta.reasoning ?? "";
    this.message.content += delta.content ?? "";
    if (this.message.content) this.answered ??= now;
    for (const piece of delta.tool_calls ?? []) this.takeCall(piece);
    this.finish = choice.finish_reason ?? this.finish;
  }

  count(tokens, now) {
    if (!this.first) {
      this.first = now;
      this.tokens.first = tokens;
    }
    if (tokens > this.tokens.all) this.last = now;
    this.tokens.all = tokens;
  }

  takeCall({ index, id, function: called = {} }) {
    const calls = (this.message.tool_calls ??= []);
    calls[index] ??= { id, type: "function", function: { name: "", arguments: "" } };
    calls[index].function.name += called.name ?? "";
    calls[index].function.arguments += called.arguments ?? "";
  }

  show() {
    this.folded.hidden = !this.reasoning;
    if (this.reasoning) showText(this.thoughts, this.reasoning);
    this.summary.textContent = this.answered || this.ended
      ? `Thought for ${seconds(((this.answered ?? this.ended) - (this.first ?? this.sent)) / 1000)}`
      : "Thinking";
    showText(this.content, this.message.content);
    const calls = this.message.tool_calls ?? [];
    while (this.calls.children.length < calls.length) this.calls.append(callNode());
    calls.forEach((call, index) => showCall(this.calls.children[index], call));
    this.footer.textContent = this.figures().join(" · ");
  }

  figures() {
    const said = [];
    if (this.tokens.all) said.push(`${figure(this.tokens.all)} tokens`);
    if (this.last > this.first) {
      said.push(`${rate((this.tokens.all - this.tokens.first) / ((this.last - this.first) / 1000))} tok/s`);
    }
    if (this.first) said.push(`first after ${seconds((this.first - this.sent) / 1000)}`);
    const ends = { length: "cut off at max tokens", stopped: "stopped", abort: "ended by the server" };
    if (ends[this.finish]) said.push(ends[this.finish]);
    return said;
  }

  end() {
    this.ended = performance.now();
    this.node.removeAttribute("aria-busy");
    this.show();
  }
}

function callNode() {
  return make("div", { className: "call" }, make("h3"), make("pre"));
}

function showCall(node, call) {
  let given = call.function.arguments;
  try {
    given = JSON.stringify(JSON.parse(given), null, 2);
  } catch {}  // not whole yet
  node.children[0].textContent = `Calls ${call.function.name}`;
  node.children[1].textContent = given;
}

// A field for what the tool gave; the conversation goes on when every call has its result.
function askResults(answer) {
  const calls = answer.message.tool_calls;
  calls.forEach((call, index) => {
    const input = make("input", { required: true, placeholder: "what the tool gave" });
    input.setAttribute("aria-label", `Result of ${call.function.name}`);
    const button = make("button", { textContent: "Give" });
    const form = make("form", {}, input, button);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (chat.answering) return;
      chat.messages.push({ role: "tool", tool_call_id: call.id, content: input.value });
      input.readOnly = button.disabled = true;
      if (calls.every(({ id }) => chat.messages.some((m) => m.tool_call_id === id))) reply();
    });
    answer.calls.children[index].append(form);
  });
}

function atEnd(change) {
  const log = $("log");
  const follow = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  change();
  if (follow) log.scrollTop = log.scrollHeight;
}

async function reply() {
  const answer = new Answer();
  let waiting = false;
  const showSoon = () => {
    if (!waiting) requestAnimationFrame(() => ((waiting = false), atEnd(() => answer.show())));
    waiting = true;
  };
  $("log").append(answer.node);
  chat.answering = new AbortController();
  showBusy();
  try {
    const response = await ask("/v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      signal: chat.answering.signal,
      body: JSON.stringify({
        model: "default",
        messages: chat.messages,
        stream: true,
        stream_options: { include_usage: true, continuous_usage_stats: true },
        ...settings(),
      }),
    });
    if (!response.ok) throw new Error((await errorOf(response)).message);
    for await (const event of events(response.body)) {
      answer.take(event);
      showSoon();
    }
  } catch (error) {
    if (chat.answering.signal.aborted) answer.finish = "stopped";
    else showError(answer, error.message);
  }
  chat.answering = null;
  atEnd(() => answer.end());
  if (answer.message.content || answer.message.tool_calls) chat.messages.push(answer.message);
  if (answer.finish === "tool_calls") askResults(answer);
  showBusy();
  poll();
  pollLoad();
}

function showError(answer, message) {
  const again = make("button", { type: "button", className: "quiet", textContent: "Try again" });
  const box = make("div", { className: "error" }, make("span", { textContent: message }), again);
  box.setAttribute("role", "alert");
  again.addEventListener("click", () => {
    if (chat.messages.at(-1) === answer.message) chat.messages.pop();
    answer.node.remove();
    reply();
  });
  answer.node.append(box);
}

function showBusy() {
  show("send", chat.answering ? "Stop" : "Send");
  $("fresh").disabled = Boolean(chat.answering);
}

function send(text) {
  $("intro").hidden = true;
  chat.messages.push({ role: "user", content: text });
  $("log").append(make("article", { className: "user", textContent: text }));
  $("log").scrollTop = $("log").scrollHeight;
  reply();
}

function submit() {
  const text = $("question").value.trim();
  if (chat.answering) chat.answering.abort();
  else if (text) {
    $("question").value = "";
    send(text);
  }
}

function startChat() {
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  $("question").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!chat.answering) submit();
  });
  $("fresh").addEventListener("click", () => {
    chat.messages = [];
    for (const node of document.querySelectorAll("#log article")) node.remove();
    $("intro").hidden = false;
    $("question").focus();
  });
  const sheet = $("settings");
  document.addEventListener("pointerdown", ({ target }) => {
    if (!sheet.contains(target)) sheet.open = false;
  });
  sheet.addEventListener("keydown", ({ key }) => {
    if (key !== "Escape") return;
    sheet.open = false;
    sheet.firstElementChild.focus();
  });
  for (const text of SAMPLES) {
    const button = make("button", { type: "button", className: "quiet", textContent: text });
    button.addEventListener("click", () => send(text));
    $("samples").append(button);
  }
}
