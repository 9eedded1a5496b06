// What all tabs use: data, elements, numbers, colours, plots.
"use strict";

const HELD = document.getElementById("data").textContent; // of a report; empty where there is a server
const DATA = HELD ? JSON.parse(HELD) : null;
const COLORS = ["#3b6fd4", "#e07b28", "#2a9d76", "#c2457f", "#8a63c9", "#b08a1e", "#3aa3c4", "#8c5a44"];
const PHASES = {
  rollout: "#7aa5e8", generate: "#7aa5e8", "generate for evaluation": "#4bb8c4", reward: "#3bab78", train: "#ee9a4d", publish: "#b183d6",
  evaluate: "#4bb8c4", checkpoint: "#98a2b3",
};
// `shown`: place of a run → which colour it has
const state = { runs: [], shown: new Map(), tab: "curves" };

async function load(path) {
  if (DATA) return path in DATA ? DATA[path] : null;
  const answer = await fetch("data/" + path.split("/").map(encodeURIComponent).join("/"));
  if (answer.status === 404) return null;
  if (!answer.ok) throw new Error(answer.statusText);
  return answer.json();
}

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") node.style.cssText = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

// Instead of what was in the node; without those that are null.
function put(node, ...children) {
  node.replaceChildren(...children.filter((child) => child !== null && child !== undefined));
}

const number = (value, digits = 4) => {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return Math.abs(value) < 1e6 ? String(value) : value.toLocaleString("en");
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(2) : String(+value.toPrecision(digits));
};
const seconds = (value) => {
  if (value === null || value === undefined) return "–";
  if (value < 1) return (value * 1000).toFixed(value < 0.01 ? 1 : 0) + " ms";
  if (value < 120) return value.toFixed(1) + " s";
  if (value < 7200) return Math.round(value / 60) + " min";
  return value < 172800 ? Math.round(value / 3600) + " h" : Math.round(value / 86400) + " days";
};
const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));
const color = (place) => COLORS[place % COLORS.length];
const runColor = (place) => (state.shown.has(place) ? color(state.shown.get(place)) : "var(--muted)");
const dot = (place) => el("span", { class: "dot", style: `background:${runColor(place)}` });
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
// A run whose folder is gone is null.
const known = () => state.runs.map((run, place) => run && { ...run, place }).filter((run) => run);
const shown = () => known().filter((run) => state.shown.has(run.place));

function choose(place, on = true) {
  if (!on) return state.shown.delete(place);
  const used = [...state.shown.values()];
  if (!state.shown.has(place)) state.shown.set(place, [...Array(used.length + 1).keys()].find((slot) => !used.includes(slot)));
}

// A metric's name, as a link to what the tab Metrics says of it. Without a description, the name alone.
function metricName(name, texts) {
  const [described] = texts[name] || [];
  if (!described) return el("span", { class: "mono", title: name }, name);
  const title = texts[name].map(([said]) => said).join(" · ");
  const leave = () => document.getElementById("large").close();
  return el("a", { class: "mono", href: metricAddress(described[2]), title, onclick: leave }, name);
}

const metricAddress = (key) => "#metrics/" + key.split("/").map(encodeURIComponent).join("/");

function empty(title, ...lines) {
  return el("div", { class: "card empty" }, el("b", {}, title), ...lines);
}

// Two theme-independent halves: what a plot looks like, and its own layout over it.
function draw(node, traces, layout = {}) {
  const axis = {
    gridcolor: css("--line"), zerolinecolor: css("--line"), linecolor: css("--line"), automargin: true,
    tickfont: { size: 11 }, title: { font: { size: 12 }, standoff: 6 },
  };
  const base = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: "x unified",
    font: { color: css("--muted"), family: "system-ui, DejaVu Sans, sans-serif", size: 12 },
    margin: { l: 44, r: 10, t: 6, b: 26 },
    hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--ink"), size: 12 } },
  };
  const merged = { ...base, ...layout };
  for (const name of ["xaxis", "yaxis"]) merged[name] = { ...axis, ...(layout[name] || {}) };
  return Plotly.react(node, traces, merged, { displayModeBar: false, responsive: true });
}

// Plots are drawn when they come into sight: there may be a hundred.
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting) {
      watcher.unobserve(entry.target);
      entry.target.isDrawn = true;
      entry.target.drawIt();
    }
  }
}, { rootMargin: "300px" });

function later(node, drawIt) {
  node.drawIt = drawIt;
  watcher.observe(node);
}

// With newer data, in place: those that were never seen are drawn when they are.
function redraw(within) {
  for (const node of within.querySelectorAll(".plot")) if (node.isDrawn) node.drawIt();
}

function choice(label, options, chosen, onchange) {
  const select = el("select", { onchange: () => onchange(select.value), "aria-label": label });
  for (const [value, said] of options) {
    select.append(el("option", { value, selected: String(value) === String(chosen) }, said));
  }
  return el("label", {}, label, select);
}

// The run that a tab of one run shows, kept over its refreshes.
function runChoice(kept) {
  const runs = shown();
  if (!runs.some((run) => run.place === kept.run)) kept.run = runs.length ? runs[0].place : null;
  const options = runs.map((run) => [run.place, run.name]);
  return runs.length < 2 ? null : choice("Run", options, kept.run, (value) => { kept.run = +value; refresh(); });
}

function tip(event, rows) {
  const box = document.getElementById("tip");
  if (!rows) { box.hidden = true; return; }
  box.replaceChildren(el("table", {}, rows.map(([name, value]) => el("tr", {}, el("td", {}, name), el("td", {}, value)))));
  box.hidden = false;
  const { width, height } = box.getBoundingClientRect();
  box.style.left = Math.min(event.clientX + 14, innerWidth - width - 8) + "px";
  box.style.top = (event.clientY + height + 26 > innerHeight ? event.clientY - height - 12 : event.clientY + 16) + "px";
}
