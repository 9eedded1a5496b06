"""An agent program that plays one task of an environment of `verifiers`, and reports its reward.

    --generator.command PYTHON --generator.command verifiers_program.py --generator.command '{…}'

The environment runs as it is; its model is this session's endpoint. The argument is, for 0.1.8 to 0.3,
`{"environment": "my-env", "options": {}}`, as `load_environment` takes them, and for 0.3 and later the table
`env` of verifiers' own configuration, with a taskset, a harness and a runtime. The number of the row or task
stands in the prompt's metadata: `task`, else `seed`.

Nothing but verifiers, what it asks for and the standard library is imported, so that PYTHON may be that of
another environment.
"""

import asyncio
import contextlib
import importlib.util
import inspect
import json
import os
import sys
import urllib.request
from itertools import islice
from typing import Any

REPORT_LIMIT_S = 60.0


async def play_object(settings: dict[str, Any], number: int) -> dict[str, Any]:
    """The report of an environment of 0.1 to 0.3, which is an object: its rubric's reward and metrics."""
    import verifiers as vf
    from openai import AsyncOpenAI

    env = vf.load_environment(settings["environment"], **settings.get("options", {}))
    rows = env.get_dataset()
    if number >= len(rows):
        sys.exit(f"The environment has no row of number {number}, counted from 0.")
    client: Any = AsyncOpenAI()
    if importlib.util.find_spec("verifiers.clients"):  # since 0.1.11
        client = vf.OpenAIChatCompletionsClient(client)
    state = await env.rollout(dict(rows[number]), client, "policy", {})
    if state.get("error") is not None:
        sys.exit(f"The rollout failed: {state['error']!r}")
    has_limit = "score_sem" in inspect.signature(env.rubric.score_rollout).parameters  # until 0.1.9
    await env.rubric.score_rollout(state, *([contextlib.nullcontext()] if has_limit else []))
    metrics = state.get("metrics") or {}
    return {
        "reward": float(state["reward"]),
        "parts": {name: float(value) for name, value in metrics.items()},
    }


async def play_task(settings: dict[str, Any], number: int) -> dict[str, Any]:
    """The report of an environment of 0.3 or later: the sum of its agents' rewards, and their parts."""
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
        sys.exit(f"The episode failed: {'; '.join(f'{error.type}: {error.message}' for error in errors)}")
    named = [pair for trace in episode.traces for pair in trace.rewards.items()]
    return {
        "reward": sum(trace.reward for trace in episode.traces),
        "parts": {name: float(reward.value) for name, reward in named if reward is not None},
    }


def report(what: dict[str, Any]) -> None:
    """To the session."""
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/report",
        json.dumps(what).encode(),
        {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
    )
    urllib.request.urlopen(request, timeout=REPORT_LIMIT_S).close()


def main(argument: str) -> None:
    """Plays and reports."""
    settings = json.loads(argument)
    with open(os.environ["RLCORE_TASK_FILE"], encoding="utf-8") as file:
        metadata = json.load(file)["metadata"]
    number = int(metadata.get("task", metadata.get("seed", 0)))
    play, needed = (play_object, "0.1 to 0.3") if "environment" in settings else (play_task, "0.3 or later")
    try:
        what = asyncio.run(play(settings, number))
    except (ImportError, AttributeError) as error:
        sys.exit(f"verifiers {needed} is needed in this environment: {type(error).__name__}: {error}")
    report(what)


if __name__ == "__main__":
    here = os.path.dirname(os.path.realpath(__file__))
    sys.path = [
        path for path in sys.path if os.path.realpath(path) != here
    ]  # `agents` is another package's too
    main(sys.argv[1])
