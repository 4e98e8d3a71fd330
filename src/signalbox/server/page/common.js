// SPDX-License-Identifier: Apache-2.0
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
