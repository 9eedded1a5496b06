// The tab Curves: every metric of the runs side by side.
"use strict";

const OVERVIEW = [
  /^rollout\/reward_mean$/, /^eval\/[^/]+\/score$/, /^train\/(loss|accuracy|reward_margin)$/,
  /^rollout\/response_length_mean$/, /^rollout\/truncated$/, /^train\/entropy$/, /^train\/grad_norm$/,
  /^train\/kl_(engine|reference|teacher)$/, /^train\/clip_fraction$/, /^critic\/explained_variance$/,
  /^rollout\/(staleness|groups_dropped|tokens_per_s)$/, /^time\/step_s$/, /^perf\/(host|gpu)_memory_gb$/,
];
const AXES = { step: "step", seconds: "time", tokens: "response tokens" };
const curves = { filter: "", smooth: 0, axis: "step", log: false, open: new Set(["overview"]), series: [], texts: {} };

curves.show = async (main) => {
  const runs = shown();
  const found = await Promise.all(runs.map((run) => load(`run/${run.place}/series`)));
  curves.series = runs.map((run, i) => ({ ...run, ...(found[i] || { axes: {}, series: {} }) }));
  curves.texts = (await load("metrics")) || {};
  const names = [...new Set(curves.series.flatMap((run) => Object.keys(run.series)))].sort();
  if (!names.length) {
    const why = runs.length ? "The run has written no row yet. This page follows it." : "Choose a run above.";
    return put(main, empty("No metrics yet", why));
  }
  const sight = JSON.stringify([names, curves.series.map((run) => [run.place, run.broken])]);
  if (curves.sight === sight && curves.body.isConnected && curves.theme === css("--back")) return redraw(curves.body);
  const body = el("div");
  Object.assign(curves, { sight, body, theme: css("--back") });
  curves.fill = () => put(body, ...sections(names));
  put(main, broken(), curves.tools(), await differences(runs), body);
  curves.fill();
};

curves.tools = () => {
  const slider = el("input", {
    type: "range", min: 0, max: 0.99, step: 0.01, value: curves.smooth, "aria-label": "Smoothing",
    oninput: () => { curves.smooth = +slider.value; said.textContent = curves.smooth || "off"; },
    onchange: () => curves.fill(),
  });
  const said = el("span", { class: "mono", style: "width:2.6em" }, String(curves.smooth || "off"));
  const search = el("input", {
    type: "search", placeholder: "Find a metric", value: curves.filter, "aria-label": "Find a metric",
    oninput: () => { curves.filter = search.value; curves.fill(); },
  });
  const log = el("input", { type: "checkbox", onchange: () => { curves.log = log.checked; curves.fill(); } });
  log.checked = curves.log;
  return el("div", { class: "tools" },
    search,
    el("label", {}, "Smoothing", slider, said),
    choice("Over", Object.entries(AXES), curves.axis, (value) => { curves.axis = value; curves.fill(); }),
    el("label", {}, log, "Log scale"));
};

function broken() {
  const runs = curves.series.filter((run) => run.broken);
  if (!runs.length) return null;
  const said = runs.map((run) => `${run.broken} line${run.broken > 1 ? "s" : ""} of ${run.name}/metrics.jsonl`);
  return el("div", { class: "note" }, `Not shown, for they cannot be read: ${said.join(", ")}.`);
}

function sections(names) {
  const words = curves.filter.toLowerCase().split(/\s+/).filter(Boolean);
  const says = (name) => name + " " + (curves.texts[name] || []).map(([said]) => said).join(" ");
  if (words.length) {
    const found = names.filter((name) => words.every((word) => says(name).toLowerCase().includes(word)));
    return found.length ? [grid(found)] : [empty("No metric is called so", "Its description has no such word either.")];
  }
  const overview = OVERVIEW.flatMap((pattern) => names.filter((name) => pattern.test(name)));
  const groups = new Map();
  for (const name of names) {
    const group = name.split("/")[0];
    groups.set(group, [...(groups.get(group) || []), name]);
  }
  const all = [["overview", overview], ...["rollout", "reward", "generator", "train", "critic", "eval", "engine", "time", "perf"]
    .filter((group) => groups.has(group)).map((group) => [group, groups.get(group)])];
  const named = new Set(all.slice(1).flatMap(([, some]) => some));
  const rest = names.filter((name) => !named.has(name));
  if (rest.length) all.push(["other", rest]);
  return all.filter(([, some]) => some.length).map(([group, some]) => {
    const section = el("details", { open: curves.open.has(group) },
      el("summary", {}, group[0].toUpperCase() + group.slice(1) + " ", el("span", { class: "muted" }, String(some.length))));
    const fill = () => { if (section.open && section.childElementCount === 1) section.append(grid(some)); };
    section.addEventListener("toggle", () => { curves.open[section.open ? "add" : "delete"](group); fill(); });
    fill();
    return section;
  });
}

function grid(names) {
  return el("div", { class: "grid" }, names.map((name) => {
    const plot = el("div", { class: "plot" });
    later(plot, () => drawCurve(plot, name));
    const said = (curves.texts[name] || []).map(([meaning]) => meaning).join(" · ");
    return el("section", { class: "card metric" },
      el("h3", {}, metricName(name, curves.texts),
        el("button", { class: "quiet", title: "Larger", "aria-label": `${name} larger`, onclick: () => enlarge(name) }, "⤢")),
      el("p", { title: said }, said || "\u00a0"), plot);
  }));
}

function enlarge(name) {
  const plot = el("div", { class: "plot" });
  const box = document.getElementById("large");
  const texts = (curves.texts[name] || []).map(([said]) => el("div", { class: "muted" }, said));
  const close = el("button", { onclick: () => box.close() }, "Close");
  const file = name.replaceAll("/", "_");
  const png = el("button", { onclick: () => Plotly.downloadImage(
    { data: plot.data, layout: { ...plot.layout, paper_bgcolor: css("--card"), title: { text: name }, margin: { l: 60, r: 20, t: 60, b: 50 } } },
    { format: "png", scale: 2, width: 1000, height: 560, filename: file }) }, "PNG");
  const csv = el("button", { onclick: () => download(`${file}.csv`, csvOf(name)) }, "CSV");
  put(box, el("header", {}, el("h2", {}, metricName(name, curves.texts)), csv, png, close), ...texts, plot);
  box.showModal();
  drawCurve(plot, name, true);
}

// The values as they were measured: neither smoothed nor hidden by a scale.
function csvOf(name) {
  const cell = (said) => (/[",\n]/.test(said) ? `"${said.replaceAll('"', '""')}"` : said);
  const rows = curves.series.filter((run) => run.series[name]).flatMap((run) =>
    run.series[name][0].map((step, i) => [cell(run.name), step, run.series[name][1][i] ?? ""]));
  return [["run", "step", cell(name)], ...rows].map((row) => row.join(",") + "\n").join("");
}

function download(name, content) {
  const link = el("a", { download: name, href: URL.createObjectURL(new Blob([content], { type: "text/csv" })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function drawCurve(node, name, large = false) {
  const traces = [];
  for (const run of curves.series) {
    if (!run.series[name]) continue;
    const [steps, values] = run.series[name];
    const x = steps.map((step) => along(run.axes, step));
    const line = { color: runColor(run.place), width: large ? 2 : 1.6 };
    const few = values.length <= 40;
    const mode = few ? "lines+markers" : "lines";
    const common = { x, name: run.name, marker: { size: 4 }, hovertemplate: "%{y:.5~g}", type: "scatter" };
    if (curves.smooth > 0 && values.length > 2) {
      traces.push({ ...common, y: values, mode: "lines", line: { ...line, width: 1 }, opacity: 0.25, showlegend: false, hoverinfo: "skip", hovertemplate: null });
      traces.push({ ...common, y: smoothed(x, values, curves.smooth), mode: "lines", line });
    } else traces.push({ ...common, y: values, mode, line });
  }
  const lowest = Math.min(...traces.flatMap((trace) => trace.y).filter(Number.isFinite));
  const unit = { seconds: "seconds", tokens: "response tokens", step: "step" }[curves.axis];
  return draw(node, traces, {
    xaxis: { title: large ? { text: unit } : undefined, nticks: large ? 12 : 5 },
    // around a constant 0, an axis would go from -1 to 1
    yaxis: { type: curves.log ? "log" : "linear", rangemode: lowest >= 0 ? "nonnegative" : "normal", nticks: large ? 10 : 5, exponentformat: "power" },
    showlegend: large && curves.series.length > 1, legend: { orientation: "h", y: 1.08 },
  });
}

// A step on the axis that is chosen: between two known steps, in proportion.
function along(axes, step) {
  if (curves.axis === "step") return step;
  const steps = axes.step, values = axes[curves.axis];
  let low = 0, high = steps.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] <= step) low = middle; else high = middle;
  }
  const width = steps[high] - steps[low];
  return width > 0 ? values[low] + ((values[high] - values[low]) * (step - steps[low])) / width : values[low];
}

// Exponential, without the bias to the first value. What is not finite leaves a gap.
function smoothed(x, values, weight) {
  let sum = 0, weights = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    weights = weight * weights + (1 - weight);
    return sum / weights;
  });
}

async function differences(runs) {
  if (runs.length < 2) return null;
  const settings = await Promise.all(runs.map((run) => load(`run/${run.place}/settings`)));
  const rows = differing(settings.map((one) => ({ ...one.settings, ...one.versions })));
  const title = rows.length ? `${rows.length} setting${rows.length > 1 ? "s differ" : " differs"}` : "No setting differs";
  return el("details", { open: rows.length > 0 && rows.length <= 8 },
    el("summary", {}, title),
    rows.length ? el("div", { class: "card scroll" }, settingsTable(runs, rows)) : null);
}

function differing(all) {
  const names = [...new Set(all.flatMap((one) => Object.keys(one)))].sort();
  return names.map((name) => [name, all.map((one) => one[name])])
    .filter(([, values]) => new Set(values.map((value) => JSON.stringify(value))).size > 1);
}

function settingsTable(runs, rows, differs = () => false) {
  return el("table", {},
    el("thead", {}, el("tr", {}, el("th", {}, "setting"), runs.map((run) => el("th", {}, dot(run.place), " ", run.name)))),
    el("tbody", {}, rows.map(([name, values]) => el("tr", { class: differs(values) ? "differs" : null },
      el("td", { class: "mono" }, name),
      values.map((value) => el("td", { class: "mono" }, value === undefined ? "–" : text(value)))))));
}
