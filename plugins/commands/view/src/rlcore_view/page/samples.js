// The tab Samples: what was generated at a step, and what training made of each token.
"use strict";

const ORDERS = {
  best: ["best first", (a, b) => worth(b) - worth(a)], worst: ["worst first", (a, b) => worth(a) - worth(b)],
  row: ["as they came", (a, b) => a.row - b.row], long: ["longest first", (a, b) => b.tokens - a.tokens],
};
const LISTED = 200;
const samples = { run: null, file: null, order: "best", filter: "", row: null, prompt: null, by: "advantage", spread: false };

const worth = (row) => (row.score === null || row.score === undefined ? -Infinity : row.score);

samples.show = async (main) => {
  const chooseRun = runChoice(samples);
  if (samples.run === null) return put(main, empty("No run is chosen", "Choose one above."));
  const files = (await load(`run/${samples.run}/samples`)) || [];
  if (!files.length) {
    return put(main, el("div", { class: "tools" }, chooseRun), empty("No samples yet",
      "Evaluations write theirs. ", el("code", {}, "--save-rollouts-every 10"), " saves what each tenth step trains on."));
  }
  if (!files.some((file) => file.name === samples.file)) {
    const rollouts = files.filter((file) => file.kind === "rollout");
    samples.file = (rollouts.length ? rollouts : files).at(-1).name;
  }
  const listed = await load(`run/${samples.run}/samples/${samples.file}`);
  const rows = listed ? listed.rows : [];
  const list = el("div", { class: "card list" });
  const detail = el("div", { class: "card" });
  samples.rows = rows;
  samples.parts = { list, detail };
  put(main, samples.tools(files, chooseRun), ...samples.notes(listed), spreadOf(files),
    el("div", { class: "split" }, list, detail));
  fillList();
};

samples.tools = (files, chooseRun) => {
  const place = files.findIndex((file) => file.name === samples.file);
  const go = (by) => { samples.file = files[place + by].name; refresh(); };
  const search = el("input", {
    type: "search", placeholder: "Find a prompt or a response", value: samples.filter, "aria-label": "Find in samples",
    oninput: () => { samples.filter = search.value; fillList(); },
  });
  const names = files.map((file) => [file.name, `step ${file.step}, ${file.kind === "eval" ? "evaluation" : "rollout"}`]);
  return el("div", { class: "tools" }, chooseRun,
    el("button", { disabled: place <= 0, onclick: () => go(-1), "aria-label": "Earlier" }, "‹"),
    choice("At", names, samples.file, (value) => { samples.file = value; refresh(); }),
    el("button", { disabled: place >= files.length - 1, onclick: () => go(1), "aria-label": "Later" }, "›"),
    choice("Sorted", Object.entries(ORDERS).map(([key, [said]]) => [key, said]), samples.order,
      (value) => { samples.order = value; fillList(); }),
    search, el("span", { class: "muted", id: "count" }));
};

// How rewards and lengths are spread at each step; a click opens the samples of it.
function spreadOf(files) {
  const { kind } = files.find((file) => file.name === samples.file);
  const same = files.filter((file) => file.kind === kind);
  if (same.length < 2) return null;
  const box = el("div", { class: "split even" });
  const fill = async () => {
    samples.spread = details.open;
    if (!details.open || box.childElementCount) return;
    const found = ((await load(`run/${samples.run}/spread`)) || {})[kind];
    if (!found) return;
    const titles = { reward: "Rewards", tokens: "Tokens of a response" };
    for (const [name, title] of Object.entries(titles)) {
      const plot = el("div", { class: "plot" });
      box.append(el("section", { class: "card metric" }, el("h3", {}, title), plot));
      drawSpread(plot, found, found[name], title);
    }
  };
  const details = el("details", { ontoggle: fill, open: samples.spread },
    el("summary", {}, "Rewards and lengths over the steps ", el("span", { class: "muted" }, kind === "eval" ? "of evaluations" : "of rollouts")), box);
  return details;
}

function drawSpread(plot, { files, steps }, { middle, shares, mean }, title) {
  const all = { x: steps, hovertemplate: "step %{x}<br>%{y:.4~g}: %{z:.0%}<extra></extra>" };
  draw(plot, [
    { ...all, type: "heatmap", y: middle, z: middle.map((_, i) => shares.map((of) => of[i])), zmin: 0, showscale: false,
      colorscale: [[0, "00"], [0.05, "40"], [0.3, "a0"], [1, "ff"]].map(([share, strength]) => [share, css("--accent") + strength]) },
    { type: "scatter", mode: "lines+markers", x: steps, y: mean, line: { color: css("--ink"), width: 1.5 }, marker: { size: 4 }, name: "mean",
      hovertemplate: "mean %{y:.4~g}<extra></extra>" },
  ], { hovermode: "closest", xaxis: { title: { text: "step" }, zeroline: false }, yaxis: { zeroline: false }, margin: { l: 44, r: 10, t: 6, b: 36 } });
  plot.on("plotly_click", ({ points }) => { samples.file = files[steps.indexOf(points[0].x)]; refresh(); });
}

samples.notes = (listed) => {
  if (!listed) return [el("div", { class: "note" }, "The report does not hold the samples of this step.")];
  const notes = [];
  if (listed.broken) notes.push(`${listed.broken} lines of the file cannot be read, and are not shown.`);
  if (listed.count > listed.rows.length) notes.push(`The first ${listed.rows.length} of ${listed.count} samples are shown.`);
  return notes.map((note) => el("div", { class: "note" }, note));
};

function fillList() {
  const words = samples.filter.toLowerCase();
  const found = samples.rows.filter((row) => !words || `${row.prompt}\n${row.response}`.toLowerCase().includes(words));
  found.sort(ORDERS[samples.order][1]);
  const scores = samples.rows.map(worth).filter(Number.isFinite);
  samples.range = [Math.min(...scores, 0), Math.max(...scores, 0)];
  document.getElementById("count").textContent =
    found.length > LISTED ? `${found.length} samples, the first ${LISTED} listed` : `${found.length} samples`;
  const { list, detail } = samples.parts;
  put(list, ...found.slice(0, LISTED).map((row) => el("button", {
    class: "item", "data-row": row.row, onclick: () => openSample(row.row),
  },
  el("div", {}, scoreOf(row), el("span", { class: "muted" }, ` ${row.tokens} tokens · ${row.status}`)),
  el("div", { class: "muted" }, row.prompt || "(empty prompt)"), el("div", {}, row.response || "(empty response)"))));
  if (!found.length) {
    put(list, empty("Nothing found", ""));
    return put(detail);
  }
  const held = found.find((row) => row.row === samples.row && [row.prompt, null].includes(samples.prompt));
  openSample((held || found[0]).row);
  const current = list.querySelector("[aria-current=true]");
  if (current) list.scrollTop = current.offsetTop - list.offsetTop - 80;
}

function scoreOf(row) {
  if (row.score === null || row.score === undefined) return el("span", { class: "score" }, row.reward_status);
  return el("span", { class: "score", style: scoreStyle(row.score) }, number(row.score, 3));
}

function scoreStyle(score) {
  const [low, high] = samples.range;
  const share = score >= 0 ? (high > 0 ? score / high : 0) : (low < 0 ? score / low : 0);
  return `background:${tint(score >= 0 ? "good" : "bad", share)}`;
}

// A theme's colour with `share` of its strength, over whatever is behind.
function tint(name, share) {
  return `color-mix(in srgb, var(--${name}) ${Math.round(8 + 52 * Math.min(1, Math.abs(share)))}%, transparent)`;
}

async function openSample(row) {
  samples.row = row;
  samples.prompt = samples.rows.find((one) => one.row === row).prompt; // another step may have it in this row too
  const { list, detail } = samples.parts;
  for (const item of list.children) item.setAttribute("aria-current", item.dataset.row === String(row));
  const file = samples.file;
  const sample = await load(`run/${samples.run}/samples/${file}/${row}`);
  if (samples.row !== row || samples.file !== file) return; // another one was asked for meanwhile
  if (!sample) return put(detail, empty("Not in the report", "A report holds the best and the worst samples of a step."));
  const facts = [["set", sample.set], ["prompt", sample.prompt_id], ["policy", sample.policy], ["status", sample.status],
    ["reward", sample.score === null ? sample.reward_status : number(sample.score)],
    ...Object.entries(sample.parts).map(([name, value]) => [name, number(value)]),
    ["label", sample.label === null ? null : text(sample.label)], ["tokens", sample.tokens],
    ["weights", sample.versions.length ? `version ${sample.versions.join(", ")}` : null]];
  put(detail,
    el("div", { class: "facts" }, facts.filter(([, value]) => value !== null && value !== undefined)
      .map(([name, value]) => el("span", {}, el("span", { class: "muted" }, name + " "), String(value)))),
    siblings(row), el("h2", {}, "Prompt"),
    el("pre", { class: "text mono" }, (sample.trajectory && sample.trajectory.prompt_text) || promptText(sample.prompt)),
    ...(sample.trajectory ? tokens(sample) : [el("h2", {}, "Response"),
      el("pre", { class: "text mono" }, sample.response || "(empty)"),
      el("div", { class: "muted" }, "An evaluation keeps its texts. Saved rollouts have their tokens too.")]));
}

function promptText(prompt) {
  if (typeof prompt === "string") return prompt;
  return prompt.map((message) => `${message.role}: ${text(message.content)}`).join("\n");
}

// The other samples of the same prompt, which the advantage compares.
function siblings(row) {
  const own = samples.rows.find((one) => one.row === row);
  const group = samples.rows.filter((one) => one.group !== null && one.group === own.group);
  if (group.length < 2) return null;
  return el("div", { class: "siblings" }, el("span", { class: "muted" }, `group ${own.group}`),
    group.map((one) => el("button", {
      "aria-current": one.row === row, title: `sample ${one.index}`, onclick: () => openSample(one.row),
    }, scoreOf(one))));
}

// --- tokens ---------------------------------------------------------------------------------------------

function columnsOf(sample) {
  const saved = sample.trajectory, count = saved.response_ids.length, extras = saved.extras || {};
  const found = {
    mask: { said: "mask", values: saved.loss_mask, kind: "mask" },
    log_prob: { said: "log-prob", values: saved.log_probs, kind: "below" },
  };
  if (saved.rewards) found.reward = { said: "reward", values: saved.rewards, kind: "both" };
  if (extras.advantages) found.advantage = { said: "advantage", values: extras.advantages, kind: "both" };
  if (extras.trained_log_probs) {
    const ratio = extras.trained_log_probs.map((trained, i) => (trained === null ? null : Math.exp(trained - saved.log_probs[i])));
    found.ratio = { said: "ratio", values: ratio, kind: "ratio" };
  }
  if (saved.spans && saved.spans.length) {
    const versions = Array(count).fill(null);
    saved.spans.forEach(([start, version], i) => versions.fill(version, start, (saved.spans[i + 1] || [count])[0]));
    found.version = { said: "weight version", values: versions, kind: "version" };
  }
  for (const [name, values] of Object.entries(extras)) {
    const isNew = name !== "advantages" && name !== "trained_log_probs" && Array.isArray(values);
    if (isNew && values.length === count && values.every((value) => typeof value === "number")) {
      found[name] = { said: name.replaceAll("_", " "), values, kind: "both" };
    }
  }
  return found;
}

function tokens(sample) {
  const saved = sample.trajectory, columns = columnsOf(sample);
  if (!columns[samples.by]) samples.by = columns.advantage ? "advantage" : "log_prob";
  const texts = saved.token_texts || saved.response_ids.map((id) => `⟨${id}⟩`);
  const box = el("div", { class: "tokens mono" });
  const legend = el("div", { class: "legend" });
  const paint = () => {
    const column = columns[samples.by];
    const scale = scaleOf(column, saved.loss_mask);
    put(legend, ...scale.legend);
    [...box.children].forEach((node, i) => { node.style.background = scale.color(column.values[i], saved.loss_mask[i]); });
  };
  box.append(...texts.map((said, i) => el("span", {
    class: saved.loss_mask[i] ? null : "own",
    onmousemove: (event) => tip(event, [["token", `${JSON.stringify(said)} (${saved.response_ids[i]})`], ["place", i + 1],
      ...Object.values(columns).map((column) => [column.said, number(column.values[i])])]),
    onmouseleave: () => tip(null, null),
  }, ...visible(said))));
  paint();
  const by = choice("Colour", Object.entries(columns).map(([key, { said }]) => [key, said]), samples.by,
    (value) => { samples.by = value; paint(); });
  return [el("div", { class: "tools", style: "margin:0" }, el("h2", { style: "margin:0" }, "Response"), by, legend), box];
}

// Line breaks are shown as such, and tokens without a text too.
function visible(said) {
  if (said === "") return [el("span", { class: "mark" }, "·")];
  return said.split(/(\n)/).filter(Boolean).map((part) => (part === "\n" ? el("span", { class: "mark" }, "⏎\n") : part));
}

function scaleOf(column, mask) {
  const live = column.values.filter((value, i) => mask[i] && Number.isFinite(value));
  const swatch = (background, said) => el("span", {}, el("i", { style: `background:${background}` }), said);
  const ramp = (low, from, to, high) => el("span", {}, low,
    el("span", { class: "ramp", style: `background:linear-gradient(90deg, ${from})` }), high, to);
  const off = (colorOf) => (value, isLive) => (isLive && Number.isFinite(value) ? colorOf(value) : "transparent");
  const grey = swatch("transparent", "italic: not sampled by the policy");
  const marked = mask.includes(0) ? [grey] : [];
  if (column.kind === "mask") {
    return { color: (value) => (value ? tint("accent", 0.6) : "transparent"),
      legend: [swatch(tint("accent", 0.6), "trained on"), ...marked] };
  }
  if (column.kind === "version") {
    const versions = [...new Set(column.values)].filter((value) => value !== null).sort((a, b) => a - b);
    const colorOf = (value) => `color-mix(in srgb, ${color(versions.indexOf(value))} 45%, transparent)`;
    return { color: (value) => (value === null ? "transparent" : colorOf(value)),
      legend: [...versions.slice(0, 12).map((version) => swatch(colorOf(version), version < 0 ? "recorded" : `version ${version}`)),
        ...(versions.length > 12 ? [el("span", {}, `and ${versions.length - 12} more`)] : [])] };
  }
  const none = { ratio: Math.log(1.001), both: 0, below: 0 }[column.kind];
  if (live.every((value) => Math.abs(column.kind === "ratio" ? Math.log(value) : value) <= none)) {
    return { color: () => "transparent", legend: [el("b", {}, `every ${column.said} is ${column.kind === "ratio" ? 1 : 0}`), ...marked] };
  }
  if (column.kind === "below") {
    const low = Math.min(...live);
    return { color: off((value) => tint("bad", value / low)),
      legend: [ramp("0 ", `${tint("bad", 0)}, ${tint("bad", 1)}`, "", number(low, 3)), ...marked] };
  }
  // the others have a middle: 0, or of a ratio 1, by its logarithm
  const middle = column.kind === "ratio" ? Math.log : (value) => value;
  const back = column.kind === "ratio" ? Math.exp : (value) => value;
  const size = Math.max(...live.map((value) => Math.abs(middle(value))));
  return {
    color: off((value) => (!middle(value) ? "transparent" : tint(middle(value) > 0 ? "good" : "bad", middle(value) / size))),
    legend: [ramp(number(back(-size), 3) + " ",
      `${tint("bad", 1)}, transparent, ${tint("good", 1)}`, "", number(back(size), 3)), ...marked],
  };
}
