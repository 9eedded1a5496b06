"""Starts SGLang's own server with the run's token: `python -P sglang_launch.py ARGV…`, run by path.

The token comes from the environment, so that it is on no command line that other users of the machine see.
"""

import multiprocessing
import os
import runpy
import sys
import warnings
from functools import partial
from itertools import pairwise
from pathlib import Path

TASKS = Path("/proc/self/task")


def fork_where_it_can() -> None:
    """Have SGLang's other processes forked from this one, with its imports, which are most of their start.

    SGLang asks for `spawn`, as CUDA needs it. Without a GPU, only another thread of this process would forbid
    to fork it. What a forked one starts in its turn is spawned.
    """
    set_method = multiprocessing.set_start_method

    def choose(method: str | None, force: bool = False) -> None:
        is_alone = TASKS.is_dir() and len(list(TASKS.iterdir())) == 1
        set_method("fork" if is_alone else method, force)

    multiprocessing.set_start_method = choose
    os.register_at_fork(after_in_child=partial(set_method, "spawn", force=True))


if __name__ == "__main__":
    if ("--device", "cpu") in pairwise(sys.argv):
        fork_where_it_can()
    sys.argv.append(f"--api-key={os.environ['RLCORE_ENGINE_TOKEN']}")  # in one: a token may begin with a dash
    warnings.filterwarnings("ignore", message=".*sglang.launch_server.*is still supported")
    runpy.run_module("sglang.launch_server", run_name="__main__")
