"""Training and evaluation from a script without a main guard, and in the kernel of a notebook."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from command import gone, wait_for
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

pytestmark = pytest.mark.full

TRAIN = """
import json
import rlcore

def brevity(response):
    return 1 / (1 + len(response))

sizes = dict(prompts_per_step=4, group_size=4, eval_every=0, eval_prompts=4)
run = rlcore.train(algo="grpo", model="qwen3", reward=brevity, steps=2, cluster="processes", **sizes)
run.metrics[["rollout/reward_mean"]]
"""

EVALUATE = """
start = str(run.folder / "model")
judged = rlcore.evaluate(model=start, eval={"order": {"task": "sort"}}, prompts=4, cluster="processes")
print(json.dumps([run.summary, judged]))
"""

LONG = """
import rlcore
rlcore.train(algo="grpo", model="qwen3", cluster="processes", run_dir="run", steps=10_000, eval_every=0)
"""

LISTENING = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's tests have it ignored
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


class Notebook:
    """A kernel as Jupyter starts it in a terminal, and what its cells show."""

    def __init__(self, folder: Path) -> None:
        self._manager = KernelManager(connection_file=str(folder / "kernel.json"))
        # with pytest's variable, the kernel would leave its descriptors alone
        environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        environment |= {"OMP_NUM_THREADS": "1", "IPYTHONDIR": str(folder / "ipython")}
        self.terminal, errors = os.openpty()
        self._manager.start_kernel(cwd=str(folder), env=environment, stderr=errors)
        os.close(errors)
        os.set_blocking(self.terminal, False)
        self._client: BlockingKernelClient = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=60)

    def begin(self, cell: str) -> None:
        """Start to execute a cell."""
        self._client.execute(cell)

    def end(self) -> list[dict[str, Any]]:
        """Everything that the cell has shown, by the time it is done."""
        shown = []
        while True:
            message = self._client.get_iopub_msg(timeout=90)
            shown.append(message["content"])
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return shown

    @property
    def family(self) -> list[psutil.Process]:
        """What the kernel has started."""
        kernel = psutil.Process(self._manager.provisioner.pid)  # type: ignore[union-attr] # it runs
        return kernel.children(recursive=True)

    def interrupt(self) -> None:
        """The button with the square."""
        self._manager.interrupt_kernel()

    def close(self) -> None:
        """End the kernel."""
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        os.close(self.terminal)


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[Notebook]:
    made = Notebook(tmp_path)
    yield made
    made.close()


def said(shown: list[dict[str, Any]], stream: str) -> str:
    return "".join(one["text"] for one in shown if one.get("name") == stream)


def test_a_notebook_is_interrupted_and_trains_again(notebook: Notebook, tmp_path: Path) -> None:
    notebook.begin(LONG)
    wait_for(lambda: (tmp_path / "run/metrics.jsonl").exists())
    family = notebook.family
    notebook.interrupt()
    [error] = [one["ename"] for one in notebook.end() if "ename" in one]
    assert error == "KeyboardInterrupt"
    gone(family)

    notebook.begin(TRAIN)
    shown = notebook.end()
    assert "step 2/2" in said(shown, "stderr")
    assert "\u2824 mean reward" in said(shown, "stderr"), "the curve"
    with contextlib.suppress(BlockingIOError):  # nothing was written there
        assert b"step 2/2" not in os.read(notebook.terminal, 1 << 16)
    [table] = [one["data"] for one in shown if "execution_count" in one and "data" in one]
    assert "rollout/reward_mean" in table["text/html"]

    notebook.begin(EVALUATE)
    summary, judged = json.loads(said(notebook.end(), "stdout"))
    assert (summary["steps"], summary["exit_reason"]) == (2, "completed")
    assert judged["eval"].keys() == {"order"}
    assert 0 <= judged["eval"]["order"]["score"] <= 1
    assert len((tmp_path / judged["samples"]).read_text().splitlines()) == 4


def test_an_interrupted_script_leaves_a_run_that_has_stopped(tmp_path: Path) -> None:
    script = start(LISTENING + LONG, tmp_path)
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
