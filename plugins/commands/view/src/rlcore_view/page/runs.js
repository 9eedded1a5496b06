// The tab Runs: which runs there are, which of them are compared, and what readers noted of them.
"use strict";

const runList = { filter: "", by: "when" };
const MOST_CHIPS = 8;
const FIRST_SHOWN = 4; // of more runs than can stand in the head, the newest
const STATUS = { running: "●", ended: "✓", failed: "✗", stopped: "■" };
const sortable = { run: "name", status: "status", step: "step", reward: "reward", model: "model", algo: "algo", "last step": "when" };

const ago = (run) => {
  if (run.when === null) return "–";
  const passed = Date.now() / 1000 - run.when;
  if (DATA) return new Date(run.when * 1000).toLocaleString();
  return passed < 3 ? "just now" : seconds(passed) + " ago";
};

runList.show = async (main) => {
  if (runList.box?.isConnected) return runList.fill(); // somebody may be typing above it
  const box = el("div", { class: "card scroll" }), count = el("span", { class: "muted" });
  let found = [];
  const search = el("input", {
    type: "search", placeholder: "Name, model, status or tag", value: runList.filter, "aria-label": "Find a run",
    oninput: () => { runList.filter = search.value; fill(); },
  });
  const only = (places) => { state.shown.clear(); places.forEach((place) => choose(place)); showRuns(); fill(); };
  const fill = () => {
    search.value = runList.filter;
    const words = runList.filter.toLowerCase().split(/\s+/).filter(Boolean);
    found = known().filter((run) => words.every((word) => saidOf(run).includes(word)));
    const key = runList.by;
    const up = typeof (found[0] || {})[key] === "string" ? 1 : -1; // names from A, numbers from the greatest
    found.sort((a, b) => (a[key] === b[key] ? 0 : a[key] === null ? 1 : b[key] === null || a[key] > b[key] ? up : -up));
    count.textContent = `${found.length} of ${known().length} runs, ${shown().length} compared`;
    put(box, found.length ? runTable(found, fill) : empty("No run is found", "Its name, model, algorithm, status, tags and note are searched."));
  };
  put(main, el("div", { class: "tools" }, search,
    el("button", { onclick: () => only(found.map((run) => run.place)) }, "Compare these"),
    el("button", { onclick: () => only([]) }, "Compare none"), count), box);
  Object.assign(runList, { box, fill });
  fill();
};

const saidOf = (run) => [run.name, run.status, run.ended, run.model, run.algo, ...run.tags, run.note].join("\n").toLowerCase();

function runTable(found, fill) {
  const head = ([title, key]) => el("th", { class: title === "step" || title === "reward" ? "number" : null, "aria-sort": runList.by === key ? "other" : null },
    el("button", { class: "quiet sort", onclick: () => { runList.by = key; fill(); } }, title, runList.by === key ? " ↓" : ""));
  const row = (run) => {
    const box = el("input", {
      type: "checkbox", checked: state.shown.has(run.place), "aria-label": `Compare ${run.name}`,
      onchange: () => { choose(run.place, box.checked); showRuns(); fill(); },
    });
    const mark = state.shown.has(run.place) ? dot(run.place) : null;
    return el("tr", {}, el("td", { class: "edge" }, box), el("td", { title: run.path }, mark, run.name),
      el("td", { class: `whole ${run.status}` }, `${STATUS[run.status]} ${run.ended && run.status !== "running" ? run.ended : run.status}`),
      el("td", { class: "number" }, `${run.step ?? 0} / ${run.steps ?? "?"}`), el("td", { class: "number" }, number(run.reward)),
      el("td", {}, text(run.model ?? "–")), el("td", {}, text(run.algo ?? "–")), el("td", { class: "whole" }, ago(run)),
      el("td", {}, run.tags.map((tag) => el("span", { class: "tag" }, tag)), el("span", { class: "muted" }, run.note)),
      el("td", { class: "edge" }, DATA ? null : el("button", { class: "quiet", "aria-label": `Note on ${run.name}`, title: "Tags and a note", onclick: () => editNote(run) }, "✎")));
  };
  return el("table", {}, el("thead", {}, el("tr", {}, el("th"), Object.entries(sortable).map(head), el("th", {}, "tags and note"), el("th"))),
    el("tbody", {}, found.map(row)));
}

// The one thing that the page writes: RUN/notes.json.
function editNote(run) {
  const box = document.getElementById("large");
  const tags = el("input", { value: run.tags.join(", "), "aria-label": "Tags", placeholder: "baseline, lr sweep", style: "width:100%" });
  const note = el("textarea", { rows: 6, maxlength: 4000, "aria-label": "Note", style: "width:100%" });
  note.value = run.note;
  const said = el("span", { class: "bad" });
  const keep = async () => {
    const words = tags.value.split(",").map((tag) => tag.trim()).filter(Boolean);
    const answer = await fetch(`note/run/${run.place}`, { method: "POST", body: JSON.stringify({ tags: words, note: note.value }) });
    if (!answer.ok) { said.textContent = "Refused: at most 20 tags of 40 characters, in a folder that you may write to."; return; }
    state.runs = await load("runs");
    box.close();
    refresh();
  };
  put(box, el("header", {}, el("h2", {}, run.name), el("button", { onclick: keep }, "Keep"), el("button", { onclick: () => box.close() }, "Cancel")),
    el("div", { class: "stack" }, el("label", {}, "Tags, with commas between", tags), el("label", {}, "Note", note),
      el("span", { class: "muted" }, `Kept in ${run.path}/notes.json.`), said));
  box.showModal();
}

// --- what rlcore train warns of ------------------------------------------------------------------------

async function showAlerts() {
  const runs = shown();
  const found = await Promise.all(runs.map((run) => load(`run/${run.place}/alerts`)));
  const all = runs.flatMap((run, i) => (found[i] || []).map((alert) => ({ ...alert, run })));
  const box = document.getElementById("alerts");
  box.hidden = !all.length;
  put(box, ...all.map(({ run, name, key, first, last, is_now: isNow, sentence }) => el("a", {
    class: isNow ? "alert" : "alert over", title: sentence, href: `#curves?filter=${encodeURIComponent(key)}`,
  }, dot(run.place), el("b", {}, ` ${name} `), isNow ? `since step ${first}` : `steps ${first} to ${last}`)));
}
