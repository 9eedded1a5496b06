"""Prompts through the buffer while rewards crash and hang and tools fail: is every one accounted for?

Producer, buffer, reward processes and the generator `tools` are those of a run; the engine answers from a
script, and nothing is trained.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import psutil
from chaos_parts import CRASHES, HANGS, TOOL_FAILS, fate
from common import Row, machine, parser, publish, say, table, verdict

from rlcore.api.generation import Completion
from rlcore.api.part import RewardPart
from rlcore.api.producer import ProducerContext
from rlcore.api.run_config import RunConfig
from rlcore.api.types import Json, Prompt, Sampling, Span
from rlcore.data.cursors import PromptCursor, cursor_of
from rlcore.data.prompt_tokenizer import PromptTokenizer
from rlcore.rollout.rewards import RewardPool
from rlcore_sampling.asynchronous import AsynchronousRollouts
from rlcore_testing.token_engine import ByteTokenizer
from rlcore_tools.config import ToolsConfig
from rlcore_tools.generator import Tools

MINUTES, GROWTH = 10.0, 0.05
BATCH, GROUP = 50, 2
DROPPED = "rollout/groups_dropped/"
WARM = 0.2
"""Share of the prompts after which memory is first looked at."""


class ScriptedEngine:
    """Calls the tool in the first turn, and answers in the second."""

    def __init__(self) -> None:
        self.version = 0
        self._tokenizer = ByteTokenizer()

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling: Sampling,
        *,
        n: int,
        seed: int,
        rid: str,
        session: str | None,
    ) -> Sequence[Completion]:
        """One answer, at once."""
        await asyncio.sleep(0)
        text = "done"
        if rid.endswith(".0"):
            asked = self._tokenizer.decode(input_ids, skip_special_tokens=True).rpartition("weigh ")[2]
            arguments = {"prompt_id": asked.partition("\n")[0]}
            text = f"<tool_call>{json.dumps({'name': 'weigh', 'arguments': arguments})}</tool_call>"
        ids = (*text.encode(), len(self._tokenizer) - 1)
        span = Span(start=0, version=self.version)
        return [
            Completion(
                token_ids=ids,
                log_probs=(-1.0,) * len(ids),
                text=text,
                finish_reason="stop",
                spans=(span,),
                prompt_tokens=len(input_ids),
            )
        ] * n

    async def abort(self) -> None:
        """There is nothing under way for long."""


def main() -> int:
    """The exit code is 1 where a prompt is not accounted for."""
    options = parser(__doc__)
    options.add_argument("--prompts", type=int, default=10_000, help="prompts to get through")
    options.add_argument("--reward-workers", type=int, default=8, help="processes of the reward")
    args = options.parse_args()
    logging.getLogger("rlcore").setLevel(logging.ERROR)
    facts = machine(args.threads)
    row = asyncio.run(_run(args))
    publish("chaos", facts, {"rows": [row]}, table([row]), dry=args.dry)
    return int(row["lost"] > 0 or row["doubled"] > 0)


async def _run(args: argparse.Namespace) -> Row:
    prompts = [  # more than are needed, so that none is drawn twice
        Prompt(prompt_id=f"prompt-{number}", text=({"role": "user", "content": f"weigh prompt-{number}"},))
        for number in range(args.prompts + 10 * BATCH)
    ]
    run = RunConfig.of(
        prompts_per_step=BATCH,
        group_size=GROUP,
        max_staleness=1,
        max_prompt_tokens=64,
        max_response_tokens=1024,
        max_refills=1000,
        reward_timeout=1.0,
    )
    engine = ScriptedEngine()
    part = RewardPart(name="chaos", factory="chaos_parts:ChaosReward")
    async with RewardPool([part], workers=args.reward_workers, timeout=run.rewards.reward_timeout) as rewards:
        producer = AsynchronousRollouts(
            ProducerContext(
                run=run,
                cursor=cursor_of(prompts, run),
                encoder=PromptTokenizer(ByteTokenizer(), run.sampling.max_prompt_tokens),
                clients=[engine],
                generator=Tools(ToolsConfig(function=("chaos_parts:weigh",))),
                rewards=rewards,
            )
        )
        found = await _consume(producer, engine, args.prompts)
    drawn = PromptCursor(prompts, run.seed).take(found.state["next_group"])
    return _row(found, {prompt.prompt_id for prompt, _ in drawn})


@dataclass(kw_only=True)
class Found:
    """What came of a run: prompt ids, drops by reason, and the producer's state at the end."""

    trained: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    state: Mapping[str, Json] = field(default_factory=dict)
    tools_failed: float = 0.0
    minutes: float = 0.0
    growth: float = 0.0


async def _consume(producer: AsynchronousRollouts, engine: ScriptedEngine, prompts: int) -> Found:
    """Take batches until `prompts` were trained on or dropped."""
    begin, process, first, found = time.perf_counter(), psutil.Process(), 0, Found()
    async with aclosing(producer.run(0, prompts)) as rollouts:
        async for rollout in rollouts:
            found.trained.update(group.prompt.prompt_id for group in rollout.groups)
            for name, value in rollout.metrics.items():
                if name.startswith(DROPPED):
                    found.dropped[name.removeprefix(DROPPED)] += int(value)
            metrics = rollout.metrics
            found.tools_failed += metrics["generator/tools_failed"] * metrics["rollout/samples"]
            done = found.trained.total() + found.dropped.total()
            if not first and done >= WARM * prompts:
                first = _memory(process)
            if rollout.step % 20 == 0:
                say(f"{done} prompts, {_memory(process) / 2**20:.0f} MiB")
            if done >= prompts:
                break
            engine.version += 1
            async with producer.publication(engine.version):
                pass
    found.state = producer.state()
    found.minutes = (time.perf_counter() - begin) / 60
    found.growth = _memory(process) / first - 1
    return found


def _row(found: Found, drawn: set[str]) -> Row:
    """Of the prompts that were `drawn`: each is trained on, or waits, or was dropped because it is doomed."""
    buffer = found.state["buffer"]
    waiting = {one["prompt"]["prompt_id"] for place in ("draws", "groups") for one in buffer[place]}
    gone = drawn - found.trained.keys() - waiting
    doomed = {name for name in drawn if fate(name) in (*CRASHES, *HANGS)}
    lost = len(gone - doomed) + abs(len(gone) - found.dropped.total())
    broken = sum(fate(name) in TOOL_FAILS for name in found.trained) * GROUP
    say(f"failed calls of the tool: {found.tools_failed:.0f}, expected {broken}")
    return {
        "prompts": len(drawn),
        "trained on": found.trained.total(),
        **{f"dropped: {reason}": count for reason, count in sorted(found.dropped.items())},
        "in the buffer": len(waiting),
        "lost": lost,
        "doubled": sum(count > 1 for count in found.trained.values()) + len(waiting & found.trained.keys()),
        "minutes": found.minutes,
        f"≤ {MINUTES:.0f}": verdict(found.minutes <= MINUTES),
        "memory, % more": 100 * found.growth,
        f"≤ {GROWTH:.0%}": verdict(found.growth <= GROWTH),
    }


def _memory(process: psutil.Process) -> int:
    gc.collect()
    return int(process.memory_info().rss)


if __name__ == "__main__":
    sys.exit(main())
