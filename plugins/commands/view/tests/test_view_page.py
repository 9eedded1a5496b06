"""The page of `rlcore view`: who may ask for it, and what a browser shows of it."""

import gzip
import json
import re
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlcore import Json
from rlcore_cli.main import run as rlcore
from rlcore_view import page
from rlcore_view.answers import Answers
from rlcore_view.server import PageServer


@pytest.fixture
def url(folder: Path) -> Iterator[str]:
    server = PageServer(page.files(), Answers([folder]).of, port=0, idle_s=2)
    thread = threading.Thread(target=server.run)
    thread.start()
    yield server.url
    thread.join(20)
    assert not thread.is_alive(), "it ends when nobody asks"


def get(url: str) -> tuple[int, bytes]:
    request = urllib.request.Request(url, headers={"Accept-Encoding": "gzip"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            body = answer.read()
            packed = answer.headers["Content-Encoding"] == "gzip"
            return answer.status, gzip.decompress(body) if packed else body
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_who_has_the_token_gets_the_page_and_nothing_else(url: str, folder: Path) -> None:
    status, html = get(url)
    assert status == 200
    for name in re.findall(r'(?:src|href)="([^":]+)"', html.decode()):
        assert get(url + name)[0] == 200, name
    assert json.loads(get(f"{url}data/run/0/series")[1])["axes"]["step"] == [1, 2, 3]
    assert json.loads(get(f"{url}data/run/0/logs/engine%200.log")[1])["text"] == "ready\n"
    host = url.rsplit("/", 2)[0]
    for path in ("", "/", "/wrong/", f"/{'x' * 32}/data/runs", "/é/"):
        assert get(host + urllib.parse.quote(path))[0] == 403
    for path in (
        "run/1/series",
        "run/0/nothing",
        "run/-1/series",
        "run/0/samples/%2e%2e/run",
        "run/0/logs/../run.toml",
    ):
        assert get(f"{url}data/{path}")[0] == 404
    assert b"hunter2" not in get(f"{url}data/run/0/settings")[1]
    (folder / "samples" / "eval-0.jsonl").unlink()
    (folder / "samples" / "eval-0.jsonl").mkdir()
    assert get(f"{url}data/run/0/samples/eval-0/0")[0] == 500


def test_the_page_loads_nothing_from_elsewhere() -> None:
    own = {name: content.decode() for name, content in page.files().items() if name != page.PLOTLY}
    assert not [name for name, content in own.items() if re.search(r"https?://", content)]


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
BROWSER_S = 60
"""Seconds that it may take to start on a busy machine: the server must not end before."""
SEEN = {
    "curves": ['href="#metrics/rollout/reward_mean"', "1 setting differs"],
    "samples": ["4 samples"],
    "timeline": ["Seconds of each step"],
    "evaluations": ["First, greatest and last"],
    "dropped": ["zero_std"],
    "settings": ["(hidden)", '<tr class="differs"><td class="mono">lr</td>', ">0.5<", ">0.25<"],
    "logs": ["ready"],
    "metrics/eval/%3Cset%3E/score": ['<tr id="eval/&lt;set&gt;/score" class="chosen">'],
}
"""What each tab shows of two runs."""


def shown(address: str, profile: Path) -> str:
    """The page at `address` as a browser has it after its scripts have run, none of which may fail."""
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=1500"]
    options += [f"--user-data-dir={profile}", "--enable-logging=stderr", "--dump-dom"]
    command = [str(BROWSER), *options, address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not [line for line in said if "Failed to fetch" not in line], address  # it leaves in mid-request
    return done.stdout


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_a_browser_shows_each_tab(folder: Path, tmp_path: Path) -> None:
    """The page's scripts run under its own policy, and so they do in the file of a report."""
    second = tmp_path / "second"
    shutil.copytree(folder, second)
    settings = second / "run.toml"
    settings.write_text(settings.read_text().replace("lr = 0.5", "lr = 0.25"))
    server = PageServer(page.files(), Answers([folder, second]).of, port=0, idle_s=BROWSER_S)
    threading.Thread(target=server.run, daemon=True).start()
    for tab, texts in SEEN.items():
        html = shown(f"{server.url}#{tab}", tmp_path / "profile")
        assert not [text for text in texts if text not in html], tab
    report = tmp_path / "both.html"
    assert rlcore(["report", str(folder), str(second), "-o", str(report)]) == 0
    for tab in ("curves", "samples"):
        html = shown(f"{report.as_uri()}#{tab}", tmp_path / "profile")
        assert not [text for text in SEEN[tab] if text not in html], tab


# chooses other samples, and at once another tab
HURRIED = b"""
const look = setInterval(() => {
  const earlier = document.querySelector("[aria-label=Earlier]");
  if (!earlier) return;
  clearInterval(look);
  earlier.click();
  location.hash = "settings";
}, 20);
"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_a_late_answer_does_not_replace_the_tab_that_was_chosen_meanwhile(
    folder: Path, tmp_path: Path
) -> None:
    answers = Answers([folder])

    def late(path: str) -> Json:
        if path == "run/0/samples/eval-0":
            time.sleep(0.5)
        return answers.of(path)

    files = page.files()
    files["hurried.js"] = HURRIED
    files["index.html"] = files["index.html"].replace(
        b"</body>", b'<script src="hurried.js"></script></body>'
    )
    server = PageServer(files, late, port=0, idle_s=BROWSER_S)
    threading.Thread(target=server.run, daemon=True).start()
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=1500", "--dump-dom"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", f"{server.url}#samples"]
    done = subprocess.run([str(BROWSER), *options], capture_output=True, text=True, timeout=60, check=False)
    assert "(hidden)" in done.stdout
    assert "Find in samples" not in done.stdout
