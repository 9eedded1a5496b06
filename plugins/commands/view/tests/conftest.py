"""The folder of a run, as the run's own parts write it."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import PROGRAM, Browser

from rlcore import Json, Prompt, RunInfo, Sample, Score, Span
from rlcore.tracking.run_files import RunFiles
from rlcore.tracking.trace import RUN, Trace
from rlcore_testing.samples import sample_of

EVIL = "</script><script>alert(1)</script>"


def sample(index: int, score: float) -> Sample:
    return sample_of(
        (3, 4, 5),
        prompt=Prompt(prompt_id="p", text=EVIL, label="21"),
        prompt_ids=(1, 2),
        index=index,
        loss_mask=(1, 0, 1),
        log_probs=(-0.5, 0.0, -2.0),
        text="2<1>",
        spans=(Span(start=0, version=2), Span(start=2, version=3)),
        score=Score(value=score, per_token=(1.0, 0.0, 0.0)),
        extras={"advantages": (0.5, 0.0, -1.0), "trained_log_probs": (-0.25, 0.0, -2.0)},
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a run of three steps, as the run's own parts write it."""
    folder = tmp_path / "first"
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "engine 0.log").write_text("ready\n")
    (folder / "run.toml").write_text('steps = 3\nlr = 0.5\n\n[tracker.post]\ntoken = "hunter2"\n')
    tracker, trace = RunFiles(), Trace(folder, 2**20)
    settings: dict[str, Json] = {"save_rollouts_every": 2}
    tracker.start(RunInfo(folder=folder, settings=settings, plugins={}, step=0, decode=str))
    with trace.span(RUN, "evaluate", step=0):
        tracker.evaluation(0, {"easy": [sample(0, 0.5)]})
    for step in (1, 2, 3):
        for phase in ("rollout", "train"):
            with trace.span(RUN, phase, step=step):
                time.sleep(0.001)
        tracker.rollout(step, [sample(index, index / 4) for index in range(4)])
        row = {"step": step, "rollout/reward_mean": step / 4, "time/step_s": 2.0, "eval/easy/score": 0.5}
        row |= {"rollout/groups_dropped/zero_std": 3, "train/clip_fraction": 0.0}
        tracker.metrics(step, row | {"rollout/response_tokens": 8})
        trace.flush()
    trace.end("completed")
    tracker.end("completed")
    return folder


@pytest.fixture(scope="module")
def one_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser for all tests of a file: it takes a second to start."""
    if PROGRAM is None:
        pytest.skip("no Chromium on this machine")
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def browser(one_browser: Browser) -> Iterator[Browser]:
    """A browser whose page may not complain of anything."""
    one_browser.open("about:blank")  # what the last page leaves in mid-request is none of this one's
    one_browser.complaints.clear()
    yield one_browser
    assert not one_browser.complaints
