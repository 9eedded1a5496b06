"""An agent program that plays one task of an environment of `verifiers` 0.3 or later, and reports its reward.

    --generator.command PYTHON --generator.command verifiers_program.py --generator.command '{"taskset": …}'

The argument is the table `env` of verifiers' own configuration. The environment runs as it is, with the
harness and the runtime that it names; its model is this session's endpoint. The task is the one of the number
in the prompt's metadata: `task`, else `seed`.

Nothing but verifiers and the standard library is imported, so that PYTHON may be that of another environment.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import urllib.request
from itertools import islice
from typing import Any

OLDEST = "0.3"
REPORT_LIMIT_S = 60.0


async def play(settings: dict[str, Any], number: int) -> dict[str, Any]:
    """The reward, and what it is made of. Ends the program where the episode failed."""
    import verifiers.v1 as vf
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

    env = load_environment(resolve_env_config(settings))
    tasks = [*islice(env.taskset, number, number + 1)]
    if not tasks:
        sys.exit(f"The environment has no task of number {number}, counted from 0.")
    client = vf.EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")
    async with env.serving():
        episode = await env.run_episode(tasks[0], vf.ModelContext(model="policy", client=client))
    if not episode.ok:
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        sys.exit(f"The episode failed: {'; '.join(f'{one.type}: {one.message}' for one in errors)}")
    named = [pair for trace in episode.traces for pair in trace.rewards.items()]
    return {
        "reward": sum(trace.reward for trace in episode.traces),
        "parts": {name: float(one.value) for name, one in named if one is not None},
    }


def report(what: dict[str, Any]) -> None:
    """To the session."""
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/report",
        json.dumps(what).encode(),
        {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
    )
    urllib.request.urlopen(request, timeout=REPORT_LIMIT_S).close()


def main(settings: str) -> None:
    """Plays and reports."""
    with open(os.environ["RLCORE_TASK_FILE"], encoding="utf-8") as file:
        metadata = json.load(file)["metadata"]
    number = int(metadata.get("task", metadata.get("seed", 0)))
    try:
        what = asyncio.run(play(json.loads(settings), number))
    except ImportError as error:
        sys.exit(f"verifiers {OLDEST} or later is needed in this environment: {error}.")
    report(what)


if __name__ == "__main__":
    main(sys.argv[1])
