// SPDX-License-Identifier: Apache-2.0
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
    const pairs = [...labels.matchAll(/(\w+)=("(?:\\.|[^"\\])*")/g)].map(([, key, text]) => [key, JSON.parse(text)]);
    samples[name] = { value: Number(value), labels: Object.fromEntries(pairs) };
  }
  return samples;
}

function setState(state, text) {
  const root = document.documentElement;
  const arrived = state !== root.dataset.state;
  root.dataset.state = state;
  show("state", text);
  $("send").disabled = state !== "ready" && !chat.answering;
  $("loading").hidden = state !== "loading";
  $("intro").hidden = state === "loading" || chat.messages.length > 0;
  if (arrived && state === "locked") $("settings").open = true;
  if (arrived && state === "ready") {
    showPlan();
    pollLoad();
  }
}

function showLoading({ phase, percent, eta_seconds: eta, bytes_done: done, bytes_total: total }) {
  show("phase", `Loading: ${phase}`);
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
  show("model", name.split("/").pop());  // of a path, or behind an owner
  $("model").title = name;
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

// What the server is at, by the code of its 503.
const STATES = { loading: "Loading", draining: "Shutting down", engine_stopped: "Engine stopped" };

async function look() {
  const [health, metrics] = await Promise.all([ask("/health"), ask("/metrics")]);
  const samples = metrics.ok ? samplesOf(await metrics.text()) : {};
  if (metrics.ok) showModel(samples.signalbox_info.labels);
  showNumbers(samples);
  if (!health.ok) {
    const error = await errorOf(health);
    if (error.code === "loading") showLoading(error);
    setState(error.code ?? "failed", STATES[error.code] ?? error.message);
  } else if (metrics.status === 401) {
    setState("locked", "Needs an API key");
  } else {
    setState("ready", "Ready");
  }
}

const poll = repeat(
  () =>
    look().catch(() => {
      showNumbers({});
      setState("offline", "No connection");
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
  const side = Math.min(cells.clientWidth / canvas.width, cells.clientHeight / canvas.height);
  cells.toggleAttribute("data-fine", side < 7);
  show("layers", `${canvas.height} layers`);
  show("columns", `${canvas.width} ${heat.columns}`);
  show("top", figure(top, 1));
  const said = `Load of ${canvas.height} layers by ${canvas.width} ${heat.columns}`;
  canvas.setAttribute("aria-label", `${said}. Arrow keys read a cell.`);
  showImbalance();
}

function showImbalance() {
  const { layers, imbalance, window_seconds: counted } = heat.load;
  const sorted = [...imbalance].sort((a, b) => a - b);
  const worst = sorted.at(-1);
  $("imbalance").textContent =
    `Counted for ${seconds(counted)}. Imbalance of ranks (most / mean - 1): ` +
    `median ${figure(sorted[sorted.length >> 1], 2)}, ` +
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
