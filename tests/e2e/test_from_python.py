"""Training and evaluation from a script without a main guard, and in an event loop as in a notebook."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from command import gone, wait_for

pytestmark = pytest.mark.full

IN_A_LOOP = """
import asyncio, io, json, sys
import rlcore

def brevity(response):
    return 1 / (1 + len(response))

async def cell():
    sys.stderr = said = io.StringIO()  # a notebook's has no file behind it
    sizes = dict(prompts_per_step=4, group_size=4, eval_every=0, eval_prompts=4)
    run = rlcore.train(algo="grpo", model="qwen3", reward=brevity, steps=2, cluster="processes", **sizes)
    start = str(run.folder / "model")
    judged = rlcore.evaluate(model=start, eval={"order": {"task": "sort"}}, prompts=4, cluster="processes")
    rewards = run.metrics["rollout/reward_mean"].to_dict()
    print(json.dumps([run.summary, rewards, said.getvalue(), judged]))

asyncio.run(cell())
"""

LONG = """
import signal
import rlcore
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background have it ignored
rlcore.train(algo="grpo", model="qwen3", cluster="processes", run_dir="run", steps=10_000, eval_every=0)
"""


def start(script: str, folder: Path) -> subprocess.Popen[str]:
    file = folder / "script.py"
    file.write_text(script)
    return subprocess.Popen(
        [sys.executable, str(file)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def test_a_notebook_trains_with_a_function_of_its_own(tmp_path: Path) -> None:
    out, errors = start(IN_A_LOOP, tmp_path).communicate(timeout=120)
    assert out, errors
    summary, rewards, said, judged = json.loads(out)
    assert summary["steps"] == 2
    assert summary["exit_reason"] == "completed"
    assert 0 < rewards["2"] <= 1
    assert "step 2/2" in said
    assert judged["eval"].keys() == {"order"}
    assert 0 <= judged["eval"]["order"]["score"] <= 1
    assert len((tmp_path / judged["samples"]).read_text().splitlines()) == 4


def test_an_interrupted_script_leaves_a_run_that_has_stopped(tmp_path: Path) -> None:
    script = start(LONG, tmp_path)
    wait_for(lambda: (tmp_path / "run/metrics.jsonl").exists())
    family = psutil.Process(script.pid).children(recursive=True)
    script.send_signal(signal.SIGINT)
    _, errors = script.communicate(timeout=60)
    assert script.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in errors
    gone(family)


def test_a_killed_script_ends_its_run(tmp_path: Path) -> None:
    script = start(LONG, tmp_path)
    wait_for(lambda: (tmp_path / "run/metrics.jsonl").exists())
    family = psutil.Process(script.pid).children(recursive=True)
    script.kill()
    script.communicate(timeout=60)
    gone(family)
