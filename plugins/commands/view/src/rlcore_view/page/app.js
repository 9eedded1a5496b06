// Tabs, runs and what follows a run that goes on.
"use strict";

const TABS = {
  runs: ["Runs", runList], curves: ["Curves", curves], samples: ["Samples", samples], timeline: ["Timeline", timeline],
  evaluations: ["Evaluations", evaluations], dropped: ["Dropped", dropped], settings: ["Settings", settings], logs: ["Logs", logs],
  metrics: ["Metrics", metrics],
};
const FOLLOWED = new Set(["runs", "curves", "timeline", "dropped"]); // the others would lose the reader's place
const LOOK_MS = 2000;
const DARK = matchMedia("(prefers-color-scheme: dark)");
// What the address holds of each tab, so that a link opens the same sight; and what each is at first.
const LINKED = {
  runs: ["filter", "by"], curves: ["filter", "smooth", "axis", "log"], samples: ["run", "file", "row", "order", "filter", "by", "spread"],
  timeline: ["run", "step", "lanes"], evaluations: ["set", "step", "filter"], dropped: ["run"], settings: ["filter"], logs: ["run", "file"],
  metrics: [],
};
const FIRST = Object.fromEntries(Object.keys(TABS).map((tab) => [tab, { ...TABS[tab][1] }]));

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // somebody typed a lone "%"
  }
}

// The name of a run; of a later one of that name, with its number.
function idOf(place) {
  const same = known().filter((run) => run.name === state.runs[place].name && run.place <= place).length;
  return same > 1 ? `${state.runs[place].name}~${same}` : state.runs[place].name;
}

const placeOf = (id) => (known().find((run) => idOf(run.place) === id) || { place: null }).place;

// "metrics/eval/<set>/score" is that key on the tab Metrics; "samples?file=eval-5&row=3" is a sample.
function address() {
  const kept = TABS[state.tab][1], said = new URLSearchParams();
  if (shown().length < known().length) shown().forEach((run) => said.append("show", idOf(run.place)));
  for (const name of LINKED[state.tab]) {
    const value = kept[name];
    if (value === null || value === undefined || value === FIRST[state.tab][name]) continue;
    if (name === "run" && (known().length < 2 || !state.runs[value])) continue;
    if (kept === timeline && name === "step" && timeline.follows && state.runs[timeline.run]?.status === "running") continue;
    said.set(name, name === "run" ? idOf(value) : value);
  }
  const key = state.tab === "metrics" && metrics.key ? metricAddress(metrics.key) : `#${state.tab}`;
  return String(said) ? `${key}?${said}` : key;
}

function remember() {
  if (location.hash !== state.hash) return; // it was changed, and is about to be read
  history.replaceState(null, "", address());
  state.hash = location.hash;
}

function goTo(tab, query) {
  const said = new URLSearchParams(query), kept = TABS[tab][1];
  if (!String(said)) return;
  const places = said.getAll("show").map(placeOf).filter((place) => place !== null);
  if (places.length) {
    state.shown.clear();
    places.forEach((place) => choose(place));
    showRuns();
  }
  for (const name of LINKED[tab]) {
    const first = FIRST[tab][name], value = said.get(name);
    if (value === null) kept[name] = first;
    else if (name === "run") kept.run = placeOf(value);
    else if (typeof first === "boolean") kept[name] = value === "true";
    else kept[name] = typeof first === "number" || ["step", "row"].includes(name) ? +value : value;
  }
  if (kept === samples) samples.prompt = null;
  if (kept === timeline) timeline.follows = timeline.step === null;
}

function showTab() {
  state.hash = location.hash;
  const [path, query] = state.hash.slice(1).split("?");
  const [name, ...rest] = path.split("/");
  metrics.key = decoded(rest.join("/"));
  state.tab = name in TABS ? name : "curves";
  goTo(state.tab, query);
  for (const button of document.querySelectorAll("#tabs button")) {
    button.setAttribute("aria-selected", button.dataset.tab === state.tab);
  }
  return refresh();
}

// One after the other: an answer that comes late must not replace the tab that was chosen meanwhile.
let asked = 0;
let drawing = Promise.resolve();
function refresh() {
  const mine = ++asked;
  drawing = drawing.then(() => (mine === asked ? showChosenTab() : undefined));
  return drawing;
}

async function showChosenTab() {
  const main = document.getElementById("main");
  tip(null, null); // what it is about goes
  try {
    await TABS[state.tab][1].show(main);
    if (!DATA) document.getElementById("live").textContent = "";
    remember();
  } catch (error) {
    gone(error);
  }
}

function gone(error) {
  console.warn(error);
  document.getElementById("live").textContent = error instanceof TypeError && /fetch/i.test(error.message)
    ? "rlcore view has ended" : String(error);
}

function status(run) {
  const steps = `step ${run.step ?? 0} of ${run.steps ?? "?"}`;
  if (DATA || run.status !== "running") return `${steps} · ${run.ended || run.status}`;
  return `${steps} · ${ago(run)}`;
}

function showRuns() {
  const all = known(), chips = all.length > MOST_CHIPS ? shown() : all;
  put(document.getElementById("runs"), ...chips.map((run) => {
    const mark = dot(run.place);
    if (!DATA && run.status === "running") mark.classList.add("going");
    return el("button", {
      class: "run", "aria-pressed": state.shown.has(run.place), title: `${run.path}: a click hides or shows it`,
      onclick: () => { choose(run.place, !state.shown.has(run.place)); showRuns(); refresh(); },
    }, mark, el("b", {}, run.name), el("span", { class: "muted" }, status(run)));
  }), all.length > chips.length ? el("button", { class: "run quiet", onclick: () => { location.hash = "runs"; } },
    el("span", { class: "muted" }, `${all.length - chips.length} more`)) : null);
  showAlerts().catch(gone);
}

async function follow() {
  if (!document.hidden) { // who does not look lets the server end
    try {
      const runs = await load("runs"), before = state.runs;
      const moved = JSON.stringify(runs) !== JSON.stringify(before);
      const all = known().length === shown().length && runs.length <= MOST_CHIPS;
      state.runs = runs;
      if (all) runs.forEach((_, place) => { if (place >= before.length) choose(place); }); // new ones, beside all others
      showRuns();
      const busy = document.getElementById("large").open || getSelection().toString();
      if (moved && !busy && (FOLLOWED.has(state.tab) || !document.querySelector("#main .card:not(.empty)"))) {
        const at = scrollY;
        await refresh();
        scrollTo(0, at);
      }
    } catch (error) {
      gone(error);
    }
  }
  setTimeout(follow, LOOK_MS);
}

// The theme of the system, until the reader has chosen one.
function setTheme() {
  let chosen = null;
  try { chosen = localStorage.getItem("rlcore-theme"); } catch { /* a file's page may have no storage */ }
  document.documentElement.dataset.theme = chosen || (DARK.matches ? "dark" : "light");
}

async function begin() {
  setTheme();
  DARK.onchange = () => { setTheme(); refresh(); };
  document.getElementById("theme").onclick = () => {
    const { dataset } = document.documentElement;
    dataset.theme = dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("rlcore-theme", dataset.theme); } catch { /* as above */ }
    refresh();
  };
  put(document.getElementById("tabs"), ...Object.entries(TABS).map(([name, [title]]) =>
    el("button", { role: "tab", "data-tab": name, onclick: () => { location.hash = name; } }, title)));
  addEventListener("hashchange", showTab);
  state.runs = (await load("runs")) || [];
  const newest = known().sort((a, b) => b.when - a.when);
  (newest.length > MOST_CHIPS ? newest.slice(0, FIRST_SHOWN) : known()).forEach((run) => choose(run.place));
  document.title = `${shown().map((run) => run.name).join(", ")} · rlcore`;
  showRuns();
  for (const kind of ["click", "input", "change"]) addEventListener(kind, () => setTimeout(remember));
  await showTab();
  if (DATA) document.getElementById("live").textContent = "report";
  else setTimeout(follow, LOOK_MS);
}

begin().catch(gone);
