// The page of a Signalbox server: a chat, and what the server says about itself. What it does not say is a dash.
"use strict";

// ---- Small things.

const $ = (id) => document.getElementById(id);
const DASH = "–";

function make(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

// What stays as it is, is not touched: a screen reader would say it again.
function show(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text;
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const rounded = (value, digits) =>
  value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const figure = (value, digits = 0) => (isNumber(value) ? rounded(value, digits) : DASH);
const rate = (value) => figure(value, value > 0 && value < 100 ? 1 : 0);
function seconds(value) {
  if (value < 1) return `${figure(value * 1000)} ms`;
  if (value < 100) return `${figure(value, 1)} s`;
  return value < 5400 ? `${figure(value / 60)} min` : `${figure(value / 3600)} h`;
}

function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  for (; value >= 1000 && unit < units.length - 1; ++unit) value /= 1000;
  return `${figure(value, unit > 2 ? 1 : 0)} ${units[unit]}`;
}

// A browser may forbid storage; the page works without.
function stored(storage, key, value) {
  try {
    if (value === undefined) return window[storage].getItem(key) ?? "";
    window[storage].setItem(key, value);
  } catch {
    return "";
  }
}

function saveFile(name, blob) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// ---- The server.

function ask(path, options = {}) {
  const headers = { ...options.headers };
  if ($("key").value) headers.Authorization = `Bearer ${$("key").value}`;
  return fetch(path, { ...options, headers, cache: "no-store" }).catch(() => {
    throw new Error("The server cannot be reached.");
  });
}

// What an answer that is no 2xx says: {message, ...}.
async function errorOf(response) {
  try {
    const { error } = await response.json();
    if (error.message) return error;
  } catch {}
  return { message: `The server answered ${response.status}.` };
}

// The JSON of each server-sent event, up to [DONE].
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("The connection broke off.");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

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
  "Ida has 6 baskets with 8 buttons in each. Ida gets 38 buttons from the museum. How many buttons does Ida have now?",
  "Max has 44 coins and Ben has 33 more than Max. Ben splits them equally among 7 friends and counts one share. What is the final number of coins?",
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
    const ends = { length: "cut: the most tokens", stopped: "stopped", abort: "ended by the server" };
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

// ---- Live numbers.

// Does `work` now and again, one at a time, while somebody can see the page. Returns what does it at once.
function repeat(work, pause) {
  let timer;
  let running = false;
  const run = async () => {
    clearTimeout(timer);
    if (running || document.hidden) return;
    running = true;
    await work();
    running = false;
    timer = setTimeout(run, pause);
  };
  document.addEventListener("visibilitychange", run);
  return run;
}

const speeds = [];  // of the last minute
let counted = null;  // tokens at the last look: {tokens, at}

// The samples of a scrape, by name; of a name with several, the last.
function samplesOf(text) {
  const samples = {};
  for (const [, name, labels, value] of text.matchAll(/^(signalbox_\w+)\{(.*)\} (\S+)$/gm)) {
    const pairs = labels.matchAll(/(\w+)=("(?:\\.|[^"\\])*")/g);
    samples[name] = { value: Number(value), labels: Object.fromEntries([...pairs].map(([, k, v]) => [k, JSON.parse(v)])) };
  }
  return samples;
}

function setState(state, text) {
  const root = document.documentElement;
  const arrived = state === "ready" && root.dataset.state !== "ready";
  root.dataset.state = state;
  show("state", text);
  $("send").disabled = state !== "ready" && !chat.answering;
  $("loading").hidden = state !== "loading";
  $("intro").hidden = state === "loading" || chat.messages.length > 0;
  if (arrived) {
    showPlan();
    pollLoad();
  }
}

function showLoading({ message, phase, percent, eta_seconds: eta, bytes_done: done, bytes_total: total }) {
  show("phase", phase ? `Loading: ${phase}` : message);
  setMeter("done", percent);
  const said = [];
  if (isNumber(percent)) said.push(`${figure(percent)} %`);
  if (isNumber(done) && total > 0) said.push(`${bytes(done)} of ${bytes(total)}`);
  if (isNumber(eta)) said.push(`${seconds(eta)} left`);
  show("eta", said.join(" · ") || DASH);
}

function setMeter(id, percent) {
  const known = isNumber(percent);
  $(id).style.width = known ? `${Math.min(100, percent)}%` : "0";
  $(id).classList.toggle("full", percent >= 90 && id !== "done");
  if (known) $(id).parentNode.setAttribute("aria-valuenow", Math.round(percent));
  else $(id).parentNode.removeAttribute("aria-valuenow");
}

function showUse(id, ratio, tokens) {
  const percent = isNumber(ratio) ? 100 * ratio : undefined;
  const said = tokens.every(isNumber) && tokens.length ? [`${tokens.map((t) => figure(t)).join(" of ")} tokens`] : [];
  if (isNumber(percent)) said.push(`${figure(percent)} %`);
  show(id, said.join(" · ") || DASH);
  setMeter(`${id}-bar`, percent);
}

// Between two looks at what has been counted.
function speedOf(tokens) {
  const now = { tokens, at: performance.now() };
  const speed = counted && (1000 * (tokens - counted.tokens)) / (now.at - counted.at);
  counted = isNumber(tokens) ? now : null;
  return speed >= 0 ? speed : undefined;  // a server that was started again counts from 0
}

function showSpeed(speed) {
  show("speed", rate(speed));
  if (isNumber(speed)) speeds.push(speed);
  if (speeds.length > 60) speeds.shift();
  const most = Math.max(0, ...speeds);
  show("peak", speeds.length ? rate(most) : DASH);
  const points = speeds.map((s, i) => `${60 - speeds.length + i + 0.5},${most ? 19 - 18 * (s / most) : 19}`);
  $("trace").querySelector("polyline").setAttribute("points", points.join(" "));
  const area = points.length ? `M${60.5 - speeds.length},20L${points.join("L")}L59.5,20z` : "";
  $("trace").querySelector("path").setAttribute("d", area);
}

function showModel({ model_name: name, layout, version }) {
  document.title = `${name} · Signalbox`;
  show("model", name);
  show("layout", layout);
  show("version", `Signalbox ${version}`);
}

function showNumbers(samples) {
  const value = (name) => samples[`signalbox_${name}`]?.value;
  showSpeed(speedOf(value("generation_tokens_total")));
  show("running", figure(value("requests_running")));
  show("waiting", figure(value("requests_waiting")));
  show("accept", figure(value("spec_accept_length") || undefined, 2));  // 0: no step of late
  showUse("kv", value("kv_cache_usage_ratio"), [value("kv_cache_used_tokens"), value("kv_cache_capacity_tokens")]);
  showUse("slots", value("state_slots_usage_ratio"), []);
}

async function look() {
  const response = await ask("/metrics");
  if (response.ok) {
    const samples = samplesOf(await response.text());
    showModel(samples.signalbox_info.labels);
    showNumbers(samples);
    return setState("ready", "Ready");
  }
  showNumbers({});
  const error = await errorOf(response);
  if (response.status === 401) return setState("locked", "Needs an API key: Settings");
  if (!error.phase) return setState("failed", error.message);
  showLoading(error);
  setState("loading", "Loading");
}

const poll = repeat(
  () =>
    look().catch((error) => {
      showNumbers({});
      setState("offline", error.message);
    }),
  1000,
);

// ---- Expert load.

const heat = { load: null, columns: "experts", row: 0, column: 0 };

const sharesOf = (row) => {
  const mean = row.reduce((sum, pairs) => sum + pairs, 0) / row.length;
  return row.map((pairs) => (mean ? pairs / mean : 0));
};

// The scale ends at the hottest cell, but not below 2: balanced rows look balanced.
const topOf = (shares) => shares.reduce((top, row) => row.reduce((a, b) => Math.max(a, b), top), 2);

// The scale under the map says what its colours are.
const rampNow = () =>
  getComputedStyle($("ramp")).backgroundImage.match(/rgb\([^)]*\)/g).map((c) => c.match(/\d+/g).map(Number));

function colourOf(ramp, part) {
  const place = Math.min(part, 1) * (ramp.length - 1);
  const low = Math.min(Math.floor(place), ramp.length - 2);
  return ramp[low].map((channel, i) => Math.round(channel + (ramp[low + 1][i] - channel) * (place - low)));
}

// One pixel is one cell; the style sheet makes them large.
function drawHeat() {
  if (!heat.load) return;
  const shares = heat.load[heat.columns].map(sharesOf);
  const top = topOf(shares);
  const ramp = rampNow();
  const canvas = $("heat");
  canvas.height = shares.length;
  canvas.width = shares[0].length;
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  shares.flat().forEach((share, i) => image.data.set([...colourOf(ramp, share / top), 255], 4 * i));
  context.putImageData(image, 0, 0);

  const cells = canvas.parentNode;
  cells.style.setProperty("--rows", canvas.height);
  cells.style.setProperty("--columns", canvas.width);
  cells.toggleAttribute("data-fine", Math.min(cells.clientWidth / canvas.width, cells.clientHeight / canvas.height) < 7);
  show("layers", `${canvas.height} layers`);
  show("columns", `${canvas.width} ${heat.columns}`);
  show("top", figure(top, 1));
  canvas.setAttribute("aria-label", `Load of ${canvas.height} layers by ${canvas.width} ${heat.columns}, at most ${figure(top, 1)} times an even share. Arrow keys read a cell.`);
  showImbalance();
}

function showImbalance() {
  const { layers, imbalance, window_seconds: counted } = heat.load;
  const sorted = [...imbalance].sort((a, b) => a - b);
  const worst = sorted.at(-1);
  $("imbalance").textContent =
    `Counted for ${seconds(counted)}. Imbalance of ranks (most / mean - 1): median ${figure(sorted[sorted.length >> 1], 2)}, ` +
    `most ${figure(worst, 2)} in layer ${layers[imbalance.indexOf(worst)]}`;
}

function showCell() {
  const rows = heat.load[heat.columns];
  heat.row = Math.max(0, Math.min(rows.length - 1, heat.row));
  heat.column = Math.max(0, Math.min(rows[0].length - 1, heat.column));
  const row = rows[heat.row];
  $("cell").textContent =
    `Layer ${heat.load.layers[heat.row]}, ${heat.columns.slice(0, -1)} ${heat.column}: ` +
    `${figure(row[heat.column])} tokens, ${figure(sharesOf(row)[heat.column], 2)} times an even share`;
}

const pollLoad = repeat(async () => {
  if (document.documentElement.dataset.state !== "ready") return;
  try {
    const response = await ask("/expert_load");
    if (!response.ok) return;
    heat.load = await response.json();
    drawHeat();
  } catch {}  // the numbers above say that there is no connection
}, 5000);

function heatSvg() {
  const shares = heat.load[heat.columns].map(sharesOf);
  const top = topOf(shares);
  const ramp = rampNow();
  const cells = shares.flatMap((row, y) => row.map((share, x) =>
    `<rect x="${x * 12}" y="${y * 12}" width="11" height="11" fill="rgb(${colourOf(ramp, share / top)})">` +
    `<title>layer ${heat.load.layers[y]}, ${heat.columns.slice(0, -1)} ${x}: ${share.toFixed(2)}</title></rect>`));
  const box = `${shares[0].length * 12 - 1} ${shares.length * 12 - 1}`;
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${box}">${cells.join("")}</svg>`;
}

function startHeat() {
  const canvas = $("heat");
  canvas.addEventListener("pointermove", ({ offsetX, offsetY }) => {
    if (!heat.load) return;
    heat.row = Math.floor((offsetY / canvas.clientHeight) * canvas.height);
    heat.column = Math.floor((offsetX / canvas.clientWidth) * canvas.width);
    showCell();
  });
  const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  canvas.addEventListener("keydown", (event) => {
    const move = moves[event.key];
    if (!move || !heat.load) return;
    event.preventDefault();
    heat.row += move[0];
    heat.column += move[1];
    showCell();
  });
  choose("columns", (columns) => {
    heat.columns = columns;
    drawHeat();
  });
  $("csv").addEventListener("click", async () =>
    saveFile("expert_load.csv", await (await ask("/expert_load?format=csv")).blob()));
  $("svg").addEventListener("click", () => {
    if (heat.load) saveFile("expert_load.svg", new Blob([heatSvg()], { type: "image/svg+xml" }));
  });
}

// ---- Plan, colours, views.

async function showPlan() {
  const response = await ask("/plan.svg");
  if (!response.ok) return;
  const url = URL.createObjectURL(await response.blob());
  URL.revokeObjectURL($("plan-small").src);
  for (const id of ["plan-small", "plan-large"]) $(id).src = url;
  $("plan").disabled = false;
}

// Buttons of which one is pressed: those with data-NAME.
function choose(name, chosen) {
  const buttons = document.querySelectorAll(`button[data-${name}]`);
  for (const button of buttons) {
    button.addEventListener("click", () => {
      for (const other of buttons) other.setAttribute("aria-pressed", other === button);
      chosen(button.dataset[name]);
    });
  }
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").setAttribute("aria-pressed", theme === "dark");
  drawHeat();
}

function startTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const ofSystem = () => (system.matches ? "dark" : "light");
  setTheme(stored("localStorage", "theme") || ofSystem());
  system.addEventListener("change", () => setTheme(ofSystem()));
  $("theme").addEventListener("click", () => {
    const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    stored("localStorage", "theme", theme);
    setTheme(theme);
  });
}

startTheme();
startChat();
startHeat();
choose("view", (view) => {
  document.body.dataset.view = view;
  drawHeat();
});
$("plan").addEventListener("click", () => $("large").showModal());
$("key").value = stored("sessionStorage", "key");
$("key").addEventListener("change", () => {
  stored("sessionStorage", "key", $("key").value);
  poll();
});
poll();
