// The tabs Evaluations, Dropped, Settings, Logs and Metrics.
"use strict";

const evaluations = { set: null, step: null, filter: "" };
const dropped = { run: null };
const settings = { all: true, filter: "" };
const logs = { run: null, file: null };
const metrics = { key: "" };
const ANSWERS = 4; // of a run to one prompt that are shown

// --- evaluations ----------------------------------------------------------------------------------------

evaluations.show = async (main) => {
  const runs = shown();
  const found = await Promise.all(runs.map((run) => load(`run/${run.place}/series`)));
  curves.series = runs.map((run, i) => ({ ...run, ...(found[i] || { axes: {}, series: {} }) }));
  curves.texts = (await load("metrics")) || {};
  const names = [...new Set(curves.series.flatMap((run) => Object.keys(run.series)))]
    .filter((name) => /^eval\/[^/]+\/(score|pass@\d+|avg@\d+|reward_mean|truncated|unscored)$/.test(name)).sort();
  if (!names.length) {
    return put(main, empty("No evaluation yet", "A run evaluates at its start and its end, and every ",
      el("code", {}, "--eval-every"), " steps."));
  }
  const plots = names.filter((name) => name.endsWith("/score")).map((name) => {
    const plot = el("div", { class: "plot" });
    later(plot, () => drawCurve(plot, name));
    return el("section", { class: "card metric" }, el("h3", {}, metricName(name, curves.texts)), plot);
  });
  const answers = el("div", { class: "card" });
  put(main, el("div", { class: "stack" }, el("div", { class: "grid" }, plots),
    el("div", { class: "card scroll" }, el("h2", {}, "First, greatest and last"), scoreTable(names)), answers));
  await evaluations.fill(answers, runs);
};

function scoreTable(names) {
  const rows = names.flatMap((name) => curves.series.filter((run) => run.series[name]).map((run) => {
    const [steps, values] = run.series[name];
    const best = values.reduce((at, value, i) => (value !== null && value > (values[at] ?? -Infinity) ? i : at), 0);
    const cell = (i) => el("td", { class: "number" }, number(values[i]), el("span", { class: "muted" }, ` at ${steps[i]}`));
    return el("tr", {}, el("td", {}, metricName(name, curves.texts)), el("td", {}, dot(run.place), run.name),
      cell(0), cell(best), cell(values.length - 1));
  }));
  return el("table", {}, el("thead", {}, el("tr", {}, ["metric", "run", "first", "greatest", "last"].map((title, i) =>
    el("th", { class: i > 1 ? "number" : null }, title)))), el("tbody", {}, rows));
}

// What each run answers to the same prompt.
evaluations.fill = async (box, runs) => {
  const files = await Promise.all(runs.map((run) => load(`run/${run.place}/samples`)));
  const steps = [...new Set(files.flatMap((some) => (some || []).filter((file) => file.kind === "eval").map((file) => file.step)))]
    .sort((a, b) => a - b);
  if (!steps.length) return put(box, empty("No answers were saved", ""));
  const having = files.filter((some) => (some || []).some((file) => file.kind === "eval"));
  const all = steps.filter((step) => having.every((some) => some.some((file) => file.kind === "eval" && file.step === step)));
  if (!steps.includes(evaluations.step)) evaluations.step = all.at(-1) ?? steps.at(-1);
  const again = () => evaluations.fill(box, runs);
  const found = await Promise.all(runs.map((run) => load(`run/${run.place}/samples/eval-${evaluations.step}`)));
  const sets = [...new Set(found.flatMap((one) => (one ? one.rows : []).map((row) => row.set)))].sort();
  if (!sets.includes(evaluations.set)) evaluations.set = sets[0] ?? null;
  const answers = new Map();
  found.forEach((one, i) => (one ? one.rows : []).forEach((row) => {
    if (row.set !== evaluations.set) return;
    const of = answers.get(row.prompt_id) || { row, runs: runs.map(() => []) };
    of.runs[i].push(row);
    answers.set(row.prompt_id, of);
  }));
  const search = el("input", {
    type: "search", placeholder: "Find a prompt or an answer", value: evaluations.filter, "aria-label": "Find an answer",
    onchange: () => { evaluations.filter = search.value; again(); },
  });
  const word = evaluations.filter.toLowerCase();
  const chosen = [...answers.values()].filter(({ row, runs: some }) =>
    !word || [row.prompt, ...some.flat().map((one) => one.response)].join("\n").toLowerCase().includes(word));
  put(box, el("h2", {}, "Answers"),
    el("div", { class: "tools" }, choice("Step", steps.map((step) => [step, all.includes(step) ? step : `${step}, not of all`]), evaluations.step, (value) => { evaluations.step = +value; again(); }),
      choice("Set", sets.map((set) => [set, set]), evaluations.set, (value) => { evaluations.set = value; again(); }), search,
      el("span", { class: "muted" }, chosen.length > 200 ? `the first 200 of ${chosen.length} prompts` : `${chosen.length} prompts`)),
    el("div", { class: "scroll" }, answerTable(runs, chosen.slice(0, 200))));
};

function answerTable(runs, answers) {
  samples.range = [0, Math.max(1e-9, ...answers.flatMap((one) => one.runs.flat().map(worth)).filter(Number.isFinite))];
  return el("table", {},
    el("thead", {}, el("tr", {}, el("th", {}, "prompt"), el("th", {}, "label"), runs.map((run) => el("th", {}, dot(run.place), " ", run.name)))),
    el("tbody", {}, answers.map(({ row, runs: some }) => el("tr", {}, el("td", { class: "mono" }, row.prompt),
      el("td", { class: "mono" }, row.label === null ? "–" : text(row.label)),
      some.map((rows) => el("td", { class: "mono" }, rows.length ? rows.slice(0, ANSWERS).map((one) =>
        el("div", {}, scoreOf(one), " ", one.response || "(empty)")) : "–",
      rows.length > ANSWERS ? el("div", { class: "muted" }, `and ${rows.length - ANSWERS} more`) : null))))));
}

// --- dropped --------------------------------------------------------------------------------------------

dropped.show = async (main) => {
  const chooseRun = runChoice(dropped);
  if (dropped.run === null) return put(main, empty("No run is chosen", "Choose one above."));
  const found = (await load(`run/${dropped.run}/dropped`)) || {};
  const texts = (await load("metrics")) || {};
  const names = Object.keys(found);
  const tools = chooseRun ? el("div", { class: "tools" }, chooseRun) : null;
  if (!names.length) {
    const some = (state.runs[dropped.run] || {}).step > 0;
    return put(main, tools, empty(some ? "Nothing was dropped" : "No step yet",
      some ? "Every group was trained on, and no sample failed." : "This page follows the run."));
  }
  const reasons = names.filter((name) => name.startsWith("rollout/groups_dropped/"));
  const plot = el("div", { style: "height:260px" });
  const legend = el("div", { class: "legend" }, reasons.map((name, i) =>
    el("span", {}, el("i", { style: `background:${color(i)}` }), name.split("/").at(-1))));
  put(main, tools, el("div", { class: "stack" },
    reasons.length ? el("div", { class: "card" }, el("h2", {}, "Groups that were not trained on, by reason"), legend, plot) : null,
    el("div", { class: "card" }, lostTable(names, found, texts))));
  if (reasons.length) {
    draw(plot, reasons.map((name, i) => ({
      type: "bar", name: name.split("/").at(-1), x: found[name].bars[0], y: found[name].bars[1], marker: { color: color(i) },
    })), { barmode: "stack", bargap: 0.1, xaxis: { title: { text: "step" } }, yaxis: { title: { text: "groups" } }, margin: { l: 52, r: 10, t: 4, b: 36 } });
  }
};

function lostTable(names, found, texts) {
  const rows = names.map((name) => {
    const { total, steps, first, last } = found[name];
    const says = (texts[name] || []).map(([said]) => said).join(" · ");
    return el("tr", {}, el("td", {}, metricName(name, texts)), el("td", {}, says),
      [total, steps, first, last].map((value) => el("td", { class: "number" }, number(value))));
  });
  const titles = ["what", "meaning", "in all", "steps with it", "first", "last"];
  return el("table", {}, el("thead", {}, el("tr", {}, titles.map((title, i) => el("th", { class: i > 1 ? "number" : null }, title)))),
    el("tbody", {}, rows));
}

// --- settings and logs ----------------------------------------------------------------------------------

settings.show = async (main) => {
  const runs = shown();
  const found = await Promise.all(runs.map((run) => load(`run/${run.place}/settings`)));
  const all = found.map((one) => ({ ...(one || {}).settings, ...(one || {}).versions }));
  const names = [...new Set(all.flatMap((one) => Object.keys(one)))];
  if (!names.length) return put(main, empty("No settings", runs.length ? "run.toml cannot be read." : "Choose a run above."));
  const box = el("div", { class: "card scroll" });
  const differs = (values) => new Set(values.map((value) => JSON.stringify(value))).size > 1;
  const fill = () => {
    const rows = names.map((name) => [name, all.map((one) => one[name])])
      .filter(([name, values]) => name.includes(settings.filter) && (settings.all || differs(values)));
    put(box, rows.length ? settingsTable(runs, rows, differs) : empty("Nothing to show", ""));
  };
  const search = el("input", {
    type: "search", placeholder: "Find a setting", value: settings.filter, "aria-label": "Find a setting",
    oninput: () => { settings.filter = search.value; fill(); },
  });
  const which = runs.length < 2 ? null : choice("Show", [["all", "all"], ["some", "those that differ"]], settings.all ? "all" : "some",
    (value) => { settings.all = value === "all"; fill(); });
  put(main, el("div", { class: "tools" }, search, which), box);
  if (runs.length < 2) settings.all = true;
  fill();
};

logs.show = async (main) => {
  const chooseRun = runChoice(logs);
  if (logs.run === null) return put(main, empty("No run is chosen", "Choose one above."));
  const names = (await load(`run/${logs.run}/logs`)) || [];
  if (!names.length) {
    return put(main, el("div", { class: "tools" }, chooseRun), DATA
      ? empty("No logs in a report", "They may hold anything. See the run's folder.") : empty("No logs yet", "Engines and workers write them."));
  }
  if (!names.includes(logs.file)) logs.file = names.includes("run.log") ? "run.log" : names[0];
  const found = await load(`run/${logs.run}/logs/${logs.file}`);
  const box = el("pre", { class: "card log mono" }, found && found.text ? found.text : "(empty)");
  put(main, el("div", { class: "tools" }, chooseRun,
    choice("File", names.map((name) => [name, name]), logs.file, (value) => { logs.file = value; refresh(); }),
    found && found.is_cut ? el("span", { class: "muted" }, "its end") : null), box);
  box.scrollTop = box.scrollHeight;
};

// --- metrics --------------------------------------------------------------------------------------------

// What the documentation says of each key. The address may name one: it is marked and scrolled to.
metrics.show = async (main) => {
  const rows = (await load("reference")) || [];
  const body = el("tbody", {}, rows.map(([key, said, page], i) =>
    el("tr", { id: rows.findIndex(([other]) => other === key) === i ? key : null, class: key === metrics.key ? "chosen" : null },
      el("td", { class: "whole" }, el("a", { class: "mono", href: metricAddress(key) }, key)),
      el("td", {}, said), el("td", { class: "mono muted whole" }, `docs/${page}`))));
  const titles = ["key of metrics.jsonl", "meaning", "page"];
  put(main, el("div", { class: "card scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, titles.map((title) => el("th", {}, title)))), body)));
  const chosen = metrics.key && document.getElementById(metrics.key);
  if (chosen) chosen.scrollIntoView({ block: "center" });
};
