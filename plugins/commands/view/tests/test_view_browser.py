"""What a browser shows of the page of `rlcore view`, and what its controls do."""

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from browser import Browser

from rlcore import Json
from rlcore_cli.main import run as rlcore
from rlcore_view import page
from rlcore_view.answers import Answers
from rlcore_view.server import PageServer

IDLE_S = 60
"""The server must outlast the browser on a busy machine."""
SEEN = {
    "curves": [
        'href="#metrics/rollout/reward_mean"',
        'href="#metrics/eval/%3Cset%3E/score"',
        "1 setting differs",
    ],
    "samples": ["4 samples"],
    "timeline": ["Seconds of each step"],
    "evaluations": ["First, greatest and last"],
    "dropped": ["zero_std"],
    "settings": ["(hidden)", '<tr class="differs"><td class="mono">lr</td>', ">0.5<", ">0.25<"],
    "logs": ["ready"],
    "metrics/eval/%3Cset%3E/score": ['<tr id="eval/&lt;set&gt;/score" class="chosen">'],
}
"""What each tab shows of two runs."""
REWARD = """[...document.querySelectorAll(".metric")]
    .find((one) => one.innerText.includes("rollout/reward_mean"))?.querySelector(".plot").data"""
"""What is drawn of that metric; undefined: nothing yet."""


@pytest.fixture
def runs(folder: Path, tmp_path: Path) -> list[Path]:
    """Two runs that differ in one setting."""
    second = tmp_path / "second"
    shutil.copytree(folder, second)
    settings = second / "run.toml"
    settings.write_text(settings.read_text().replace("lr = 0.5", "lr = 0.25"))
    return [folder, second]


def served(answers: Answers, answer: Callable[[str], Json] | None = None) -> str:
    """The address of a page about these, that gets its data from `answer`."""
    server = PageServer(page.files(), answer or answers.of, answers.note, port=0, idle_s=IDLE_S)
    threading.Thread(target=server.run, daemon=True).start()
    return server.url


def see(browser: Browser, tab: str) -> None:
    """Change to a tab, and wait for what it shows."""
    browser.run(f"location.hash = {json.dumps(tab)}")
    for text in SEEN[tab]:
        browser.wait(f"document.documentElement.outerHTML.includes({json.dumps(text)})")


def test_each_tab_shows_two_runs(runs: list[Path], browser: Browser) -> None:
    """In the theme of the system, which may change meanwhile."""
    rows = (runs[1] / "metrics.jsonl").read_text().splitlines(keepends=True)
    nothing = '{"step": %d, "train/advantage_mean": 0, "train/advantage_std": 0}\n'
    (runs[1] / "metrics.jsonl").write_text("".join([*rows, *(nothing % step for step in range(4, 10))]))
    browser.open(served(Answers(runs)))
    for tab in SEEN:
        see(browser, tab)
    assert browser.run("document.getElementById('alerts').innerText.trim()") == "no signal since step 4"
    for theme in ("dark", "light"):
        scheme = {"name": "prefers-color-scheme", "value": theme}
        browser.call("Emulation.setEmulatedMedia", features=[scheme])
        browser.wait(f"document.documentElement.dataset.theme === '{theme}'")


@pytest.mark.full
def test_a_report_shows_them_too(runs: list[Path], tmp_path: Path, browser: Browser) -> None:
    """Under the policy of a file, and without a server. A link opens the same sight of it."""
    report = tmp_path / "both.html"
    assert rlcore(["report", *map(str, runs), "-o", str(report)]) == 0
    browser.open(report.as_uri())
    for tab in ("curves", "samples"):
        see(browser, tab)
    link = "#samples?show=second&run=second&file=rollout-2&row=1&order=worst&filter=2%3C"
    browser.open("about:blank")
    browser.open(report.as_uri() + link)
    browser.wait("document.querySelector('.item[aria-current=true]')?.dataset.row === '1'")
    assert browser.run("location.hash") == link
    assert browser.run("shown().map((run) => run.name)") == ["second"]


def test_a_folder_of_runs_is_filtered_compared_and_noted_on(
    runs: list[Path], tmp_path: Path, browser: Browser
) -> None:
    answers = Answers([tmp_path], folders=True)
    browser.open(served(answers) + "#runs")
    names = "[...document.querySelectorAll('tbody tr')].map((row) => row.cells[1].innerText).sort().join()"
    browser.wait(f"{names} === 'first,second'")
    browser.click("[aria-label='Note on second']")
    browser.choose("Tags", "slow, low lr")
    browser.click("#large button")
    browser.wait("document.querySelector('.tag')?.innerText === 'slow'")
    shutil.copytree(runs[0], tmp_path / "third")
    browser.wait(f"{names} === 'first,second,third'")
    browser.choose("Find a run", "LOW LR")
    browser.wait(f"{names} === 'second'")
    browser.click(".tools button")  # Compare these
    assert browser.run("shown().map((run) => run.name)") == ["second"]
    assert browser.run("address()") == "#runs?show=second&filter=LOW+LR"


def test_evaluations_open_at_a_step_that_all_runs_have(runs: list[Path], browser: Browser) -> None:
    samples = runs[0] / "samples"
    shutil.copy(samples / "eval-0.jsonl", samples / "eval-3.jsonl")
    browser.open(served(Answers(runs)) + "#evaluations")
    browser.wait("document.querySelector('[aria-label=Step]')?.value === '0'")


@pytest.mark.full
def test_curves_are_smoothed_hidden_and_drawn_over_time(runs: list[Path], browser: Browser) -> None:
    browser.open(served(Answers(runs)) + "#curves")

    def curves(count: int) -> list[dict[str, Json]]:
        found: list[dict[str, Json]] = browser.wait(f"{REWARD}?.length === {count} && {REWARD}")
        return found

    first, _ = curves(2)
    assert (first["x"], first["y"]) == ([1, 2, 3], [0.25, 0.5, 0.75])
    browser.choose("Smoothing", "0.5")
    raw, smooth, *_ = curves(4)
    assert (raw["y"], raw["opacity"]) == (first["y"], 0.25)
    assert smooth["y"] == pytest.approx([0.25, (0.25 / 2 + 0.5) / 1.5, (0.25 / 4 + 0.5 / 2 + 0.75) / 1.75])
    browser.click("[aria-label='rollout/reward_mean larger']")
    assert browser.run("csvOf('rollout/reward_mean')").splitlines()[:2] == [
        "run,step,rollout/reward_mean",
        "first,1,0.25",
    ]
    assert browser.wait("document.querySelectorAll('#large .legend .traces').length") == 2
    browser.run("document.getElementById('large').close()")
    browser.click("[aria-label='train/clip_fraction larger']")
    assert browser.wait("document.querySelector('#large .plot').layout?.yaxis.range")[0] == 0
    browser.run("document.getElementById('large').close()")
    browser.choose("Smoothing", "0")
    browser.choose("Over", "seconds")
    browser.click(".run")
    (second,) = curves(1)
    assert (second["name"], second["x"]) == ("second", [2, 4, 6])


@pytest.mark.full
def test_samples_are_sorted_by_reward_and_found_by_text(folder: Path, browser: Browser) -> None:
    """Of another step, the first one is open, unless the same prompt is in the same row."""
    evaluation = folder / "samples" / "eval-0.jsonl"
    evaluation.write_text(evaluation.read_text().replace('"prompt": "', '"prompt": "other ') * 4)
    browser.open(served(Answers([folder])) + "#samples")
    scores = """[...document.querySelectorAll(".item .score")].map((one) => one.textContent).join(" ")"""
    browser.wait(f"{scores} === '0.75 0.5 0.25 0'")
    open_row = "document.querySelector('.item[aria-current=true]').dataset.row"
    assert browser.run(open_row) == "3"
    browser.choose("At", "eval-0")
    browser.wait(f"{scores} === '0.5 0.5 0.5 0.5'")
    assert browser.run(open_row) == "0"
    browser.choose("At", "rollout-2")
    browser.wait(f"{scores} === '0.75 0.5 0.25 0'")
    browser.choose("Sorted", "worst")
    browser.wait(f"{scores} === '0 0.25 0.5 0.75'")
    browser.click(".item")
    browser.wait("document.querySelector('.facts')?.innerText.includes('reward 0\\n')")
    browser.choose("Find in samples", "no such text")
    browser.wait("document.getElementById('count').textContent === '0 samples'")


def tint(name: str, percent: int) -> str:
    return f"color-mix(in srgb, var(--{name}) {percent}%, transparent)"


COLORS = {
    "advantage": [tint("good", 34), "transparent", tint("bad", 60)],
    "reward": [tint("good", 60), "transparent", "transparent"],
    "log_prob": [tint("bad", 21), "transparent", tint("bad", 60)],
    "ratio": [tint("good", 60), "transparent", "transparent"],
    "mask": [tint("accent", 39), "transparent", tint("accent", 39)],
    "version": ["rgb(59, 111, 212)", "rgb(59, 111, 212)", "rgb(224, 123, 40)"],
}
"""Of three tokens, the second of which the policy did not sample."""


@pytest.mark.full
def test_tokens_are_coloured_by_each_of_their_values(folder: Path, browser: Browser) -> None:
    browser.open(served(Answers([folder])) + "#samples")
    for by, expected in COLORS.items():
        browser.choose("Colour", by)
        found = browser.run(
            "[...document.querySelectorAll('.tokens > span')].map((one) => one.style.background)"
        )
        assert len(found) == len(expected)
        assert all(color in one for color, one in zip(expected, found, strict=True)), (by, found)
    browser.run("document.querySelector('.tokens > span').dispatchEvent(new MouseEvent('mousemove'))")
    said = browser.run("document.getElementById('tip').innerText").replace("\t", " ").splitlines()
    assert {"log-prob -0.5", "advantage 0.5", "ratio 1.284", "weight version 2"} <= set(said)
    browser.run("location.hash = 'logs'")
    browser.wait("document.getElementById('tip').hidden")


def test_samples_without_an_advantage_say_so_and_are_spread_over_steps(
    folder: Path, browser: Browser
) -> None:
    saved = folder / "samples" / "rollout-2.jsonl"
    flat = saved.read_text().replace('"advantages": [0.5, 0.0, -1.0]', '"advantages": [0.0, 0.0, 0.0]')
    (folder / "samples" / "rollout-4.jsonl").write_text(flat)
    browser.open(served(Answers([folder])) + "#samples?spread=true")
    browser.wait("document.querySelector('.legend')?.innerText.includes('every advantage is 0')")
    drawn = browser.wait("[...document.querySelectorAll('.split.even .plot')][0]?.data")
    shares, mean = drawn
    assert (shares["x"], shares["y"][0], shares["y"][-1]) == ([2, 4], 0, 0.75)
    assert [row for row in shares["z"] if any(row)] == [[0.25, 0.25]] * 4
    assert mean["y"] == [0.375, 0.375]


def test_a_late_answer_does_not_replace_the_tab_that_was_chosen_meanwhile(
    folder: Path, browser: Browser
) -> None:
    answers, asked, chosen = Answers([folder]), threading.Event(), threading.Event()

    def late(path: str) -> Json:
        if path == "run/0/samples/eval-0":
            asked.set()
            assert chosen.wait(IDLE_S)
        return answers.of(path)

    browser.open(served(answers, late) + "#samples")
    browser.click("[aria-label=Earlier]")
    assert asked.wait(IDLE_S)
    browser.run("location.hash = 'settings'")
    browser.wait("state.tab === 'settings'")
    chosen.set()
    shown = browser.run("drawing.then(() => document.getElementById('main').innerHTML)")
    assert "(hidden)" in shown
    assert "Find in samples" not in shown
