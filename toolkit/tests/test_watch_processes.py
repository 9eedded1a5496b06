"""How the processes of a run are watched."""

import subprocess
import sys

import pytest

from rlcore.api.errors import WorkerError
from rlcore_toolkit import watch_processes

LIMIT_S = 30.0
ENDED = r"^It has ended: its processes cannot go on\.$"


async def test_a_process_that_ended_before_it_was_watched_is_told() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(LIMIT_S)
    with pytest.raises(WorkerError, match=ENDED):
        await watch_processes({"It": process.pid}, LIMIT_S)


async def test_a_process_that_ends_unreaped_is_told() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    try:
        with pytest.raises(WorkerError, match=ENDED):
            await watch_processes({"It": process.pid}, LIMIT_S)
    finally:
        process.wait(LIMIT_S)
