// The tab Timeline: what a run spends its time on, and every request of one step.
"use strict";

const timeline = { run: null, step: null, follows: true, lanes: "slots" };

timeline.show = async (main) => {
  const before = timeline.run;
  const chooseRun = runChoice(timeline);
  if (timeline.run === null) return put(main, empty("No run is chosen", "Choose one above."));
  const bars = (await load(`run/${timeline.run}/trace`)) || [];
  if (!bars.length) {
    return put(main, el("div", { class: "tools" }, chooseRun), empty("No trace",
      "The run has not finished a step, or was started with ", el("code", {}, "--trace-limit 0"), "."));
  }
  const last = bars.at(-1).to;
  const isOther = before !== null && before !== timeline.run;
  if (timeline.follows || isOther || timeline.step === null || timeline.step > last) timeline.step = last;
  const overview = el("div", { style: "height:230px" }), phases = el("div", { class: "legend" });
  const detail = el("div", { class: "card" });
  put(main, el("div", { class: "tools" }, chooseRun, timeline.steps(bars, detail)),
    el("div", { class: "stack" }, el("div", { class: "card" }, el("h2", {}, "Seconds of each step"), phases, overview), detail));
  drawOverview(overview, phases, bars, (step) => timeline.go(step, last, detail));
  await timeline.fill(detail);
};

timeline.steps = (bars, detail) => {
  const first = bars[0].from, last = bars.at(-1).to;
  const box = el("input", {
    type: "number", min: first, max: last, value: timeline.step, style: "width:6.5em", "aria-label": "Step", id: "step",
    onchange: () => timeline.go(+box.value, last, detail),
  });
  return [
    el("button", { onclick: () => timeline.go(timeline.step - 1, last, detail), "aria-label": "Step before" }, "‹"),
    el("label", {}, "Step", box), el("span", { class: "muted" }, `of ${first} to ${last}`),
    el("button", { onclick: () => timeline.go(timeline.step + 1, last, detail), "aria-label": "Step after" }, "›"),
    choice("Lanes", [["slots", "as they ran"], ["samples", "by sample"]], timeline.lanes,
      (value) => { timeline.lanes = value; timeline.fill(detail); }),
  ];
};

timeline.go = (step, last, detail) => {
  timeline.step = Math.max(0, Math.min(step, last));
  timeline.follows = timeline.step === last;
  document.getElementById("step").value = timeline.step;
  return timeline.fill(detail);
};

function drawOverview(node, legend, bars, chosen) {
  const names = Object.keys(PHASES).filter((name) => bars.some((bar) => bar.seconds[name] > 0));
  put(legend, ...names.map((name) => el("span", {}, el("i", { style: `background:${PHASES[name]}` }), name)));
  const said = (bar) => (bar.from === bar.to ? `step ${bar.to}` : `steps ${bar.from} to ${bar.to}, mean; slowest ${bar.slowest}`);
  const traces = names.map((name) => ({
    type: "bar", name, marker: { color: PHASES[name] }, x: bars.map((bar) => (bar.from + bar.to) / 2),
    y: bars.map((bar) => bar.seconds[name]), width: bars.map((bar) => Math.max(0.8, (bar.to - bar.from + 1) * 0.9)),
    customdata: bars.map(said), hovertemplate: "%{y:.3~s} s",
  }));
  draw(node, traces, {
    barmode: "stack", bargap: 0.1, xaxis: { title: { text: "step" }, hoverformat: "d" }, yaxis: { title: { text: "seconds" } },
    margin: { l: 52, r: 10, t: 4, b: 36 },
  });
  node.removeAllListeners("plotly_click");
  node.on("plotly_click", (event) => chosen(bars[event.points[0].pointIndex].slowest));
}

timeline.fill = async (detail) => {
  const step = timeline.step;
  const found = await load(`run/${timeline.run}/trace/${step}`);
  if (step !== timeline.step) return;
  if (!found) {
    const why = DATA ? "A report holds the timeline of the newest steps and of the slowest." : "The trace keeps the newest spans.";
    return put(detail, empty(`Step ${step} is not here`, why));
  }
  const rows = lanesOf(found.spans);
  const height = Math.max(220, Math.min(1100, 90 + rows.count * 16));
  const plot = el("div", { style: `height:${height}px` });
  const kinds = [...new Set(found.spans.map(kindOf))].filter((name) => PHASES[name]);
  const legend = el("div", { class: "legend" }, kinds.map((name) => el("span", {}, el("i", { style: `background:${PHASES[name]}` }), name)));
  put(detail, el("h2", {}, `Step ${step}: ${seconds(found.seconds)}`), el("div", { class: "facts" }, facts(found)), legend,
    found.cut ? el("div", { class: "note" }, "The step has more requests than can be shown. The rest is left out.") : null, plot);
  drawSpans(plot, found, rows, height);
};

function facts(found) {
  const shares = {};
  for (const span of found.spans) {
    if (span.track === "run") shares[span.name] = (shares[span.name] || 0) + span.end - span.begin;
  }
  const said = Object.entries(shares).map(([name, value]) => [name, `${seconds(value)} (${Math.round((100 * value) / found.seconds)} %)`]);
  const requests = found.spans.filter((span) => span.name === "generate");
  if (requests.length) {
    const longest = requests.reduce((a, b) => (a.end - a.begin > b.end - b.begin ? a : b));
    const tokens = requests.reduce((sum, span) => sum + (span.about.tokens || 0), 0);
    said.push(["requests", requests.length], ["tokens", tokens], ["longest request", seconds(longest.end - longest.begin)],
      ["engines busy", `${Math.round((100 * busy(requests)) / found.seconds)} % of the step`]);
  }
  return said.map(([name, value]) => el("span", {}, el("span", { class: "muted" }, name + " "), String(value)));
}

// Seconds in which at least one of the spans goes on.
function busy(spans) {
  let sum = 0, end = 0;
  for (const span of [...spans].sort((a, b) => a.begin - b.begin)) {
    const begin = Math.max(span.begin, end, 0);
    if (span.end > begin) { sum += span.end - begin; end = span.end; }
  }
  return sum;
}

const order = (track) => (track === "run" ? -1 : track === "rewards" ? Infinity : +track.replace(/\D/g, ""));

// A row for each lane of each track, the run above; with a gap between two tracks. The run's row is as high
// as it needs to be seen beside hundreds.
function lanesOf(spans) {
  const tracks = [...new Set(spans.map((span) => span.track))].sort((a, b) => order(a) - order(b));
  const rows = new Map(), labels = [];
  const lanes = new Set(spans.map(key)).size;
  let count = 0;
  for (const track of tracks) {
    if (track === "run") count += lanes / 90;
    const own = spans.filter((span) => span.track === track);
    const keys = [...new Set([...own].sort((a, b) => lane(a) - lane(b) || a.begin - b.begin).map(key))];
    labels.push([track, count + (keys.length - 1) / 2]);
    keys.forEach((name) => rows.set(name, count++));
    count += track === "run" ? lanes / 45 : 0.6 + lanes / 90;
  }
  return { of: (span) => rows.get(key(span)), labels, count };
}

const ASKED_BY_EVAL = "generate for evaluation";
const kindOf = (span) => (span.name === "generate" && span.about.rid.startsWith("eval-") ? ASKED_BY_EVAL : span.name);
const bySample = (span) => timeline.lanes === "samples" && span.name === "generate";
const lane = (span) => (bySample(span) ? 0 : span.lane);
// of a request: the sample's name stands before its attempt and turn
const key = (span) => `${span.track} ${bySample(span) ? span.about.rid.replace(/-\d+\..*$/, "") : span.lane}`;

function drawSpans(node, found, rows, height) {
  const width = Math.max(1.5, Math.min(13, ((height - 60) / rows.count) * 0.78));
  const names = [...new Set(found.spans.map(kindOf))];
  const traces = names.map((name) => {
    const x = [], y = [], texts = [];
    for (const span of found.spans.filter((one) => kindOf(one) === name)) {
      const row = rows.of(span), begin = Math.max(0, span.begin), end = Math.min(found.seconds, span.end);
      const about = Object.entries(span.about).map(([what, value]) => `${what} ${text(value)}`).join("<br>");
      const said = `<b>${name}</b> ${seconds(span.end - span.begin)}<br>${about}`;
      for (const at of [begin, (begin + end) / 2, end]) { x.push(at); y.push(row); texts.push(said); }
      x.push(null); y.push(null); texts.push(null);
    }
    return {
      type: "scatter", mode: "lines", name, x, y, text: texts, hovertemplate: "%{text}<extra></extra>",
      line: { color: PHASES[name] || "#98a2b3", width: ["generate", ASKED_BY_EVAL, "reward"].includes(name) ? width : 13 },
    };
  });
  draw(node, traces, {
    hovermode: "closest", margin: { l: 70, r: 10, t: 14, b: 40 },
    xaxis: { title: { text: "seconds of the step" }, range: [0, found.seconds], zeroline: false },
    yaxis: {
      tickvals: rows.labels.map(([, at]) => at), ticktext: rows.labels.map(([track]) => track), showgrid: false,
      zeroline: false, range: [rows.count, -0.8], ticklabeloverflow: "allow",
    },
  });
}
