// Tabs, runs and what follows a run that goes on.
"use strict";

const TABS = {
  curves: ["Curves", curves], samples: ["Samples", samples], timeline: ["Timeline", timeline],
  evaluations: ["Evaluations", evaluations], dropped: ["Dropped", dropped], settings: ["Settings", settings], logs: ["Logs", logs],
  metrics: ["Metrics", metrics],
};
const FOLLOWED = new Set(["curves", "timeline", "dropped"]); // the others would lose the reader's place
const LOOK_MS = 2000;
const FRESH_S = 60;
const DARK = matchMedia("(prefers-color-scheme: dark)");

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // somebody typed a lone "%"
  }
}

// "metrics/eval/<set>/score" is that key on the tab Metrics.
function showTab(address) {
  const [name, ...rest] = address.split("/");
  metrics.key = decoded(rest.join("/"));
  state.tab = name in TABS ? name : "curves";
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
  if (run.ended) return `${steps} · ${run.ended}`;
  if (DATA || run.age === null) return steps;
  return `${steps} · ${run.age < 3 ? "just now" : seconds(run.age) + " ago"}`;
}

function showRuns() {
  put(document.getElementById("runs"), ...state.runs.map((run, place) => {
    const going = !DATA && !run.ended && run.age !== null && run.age < FRESH_S;
    const mark = dot(place);
    if (going) mark.classList.add("going");
    return el("button", {
      class: "run", "aria-pressed": state.shown.has(place), title: `${run.path}: a click hides or shows it`,
      onclick: () => { state.shown[state.shown.has(place) ? "delete" : "add"](place); showRuns(); refresh(); },
    }, mark, el("b", {}, run.name), el("span", { class: "muted" }, status(run)));
  }));
}

async function follow() {
  if (!document.hidden) { // who does not look lets the server end
    try {
      const runs = await load("runs");
      const moved = JSON.stringify(runs.map((run) => [run.step, run.ended])) !== JSON.stringify(state.runs.map((run) => [run.step, run.ended]));
      state.runs = runs;
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
  addEventListener("hashchange", () => showTab(location.hash.slice(1)));
  state.runs = (await load("runs")) || [];
  state.runs.forEach((_, place) => state.shown.add(place));
  document.title = `${state.runs.map((run) => run.name).join(", ")} · rlcore`;
  showRuns();
  await showTab(location.hash.slice(1));
  if (DATA) document.getElementById("live").textContent = "report";
  else setTimeout(follow, LOOK_MS);
}

begin().catch(gone);
