"""What rollout workers give and cost: an agent's Python in the driver, and in processes of its own.

The engine is an object in the driver that has its answers ready, so the driver's HTTP client is not in the
numbers (`driver.py` has it). All else is that of a run: pipeline, workers, and the generator `tools` with its
chat template, tool calls and functions.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import psutil
from common import Row, machine, parser, publish, say, table

from rlcore.api.cluster import Actor, ActorThread
from rlcore.api.generation import Completion
from rlcore.api.packed import PackedFloats, PackedInts
from rlcore.api.part import Part
from rlcore.api.run_config import RunConfig
from rlcore.api.types import Prompt, Sample, Sampling, Span
from rlcore.data.prompt_tokenizer import PromptTokenizer
from rlcore.rollout.context import EngineContext
from rlcore.rollout.evaluate import NoReward
from rlcore.rollout.generators import Generators
from rlcore.rollout.group import Draw, GroupOutcome, Versions, new_samples
from rlcore.rollout.pipeline import GroupPipeline
from rlcore.runtime.rollout_workers import RolloutWorkers
from rlcore.runtime.trainer import BundleSlot
from rlcore_machine import settle_heap
from rlcore_machine.tasks import together
from rlcore_processes.cluster import ProcessCluster
from rlcore_processes.config import ProcessesConfig
from rlcore_testing.chat import save_chat_tokenizer
from rlcore_tools.config import ToolsConfig

THOUGHT = "I should look at the shelf before I say how many pages its thickest book has. " * 6
LONGEST = 2**17
PRELOAD = ("rlcore_processes.actor_process", "transformers", "rollout_workers_agent")


@dataclass
class Scripted:
    """Calls the tool in each turn but the last, in which it answers."""

    tokenizer: Any
    turns: int
    known: dict[int, Completion] = field(default_factory=dict)

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling: Sampling,
        *,
        n: int,
        seed: int,
        rid: str,
        session: str | None,
    ) -> list[Completion]:
        """The answer of the turn that the `rid` ends with."""
        turn = int(rid.rpartition(".")[2])
        if turn not in self.known:
            call = f'<tool_call>\n{{"name": "look", "arguments": {{"shelf": "shelf {turn}"}}}}\n</tool_call>'
            text = f"{THOUGHT}{call if turn + 1 < self.turns else 'The answer is 25.'}"
            ids = [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]
            self.known[turn] = Completion(
                token_ids=PackedInts(ids),
                log_probs=PackedFloats.full(len(ids), -0.5),
                text=text,
                finish_reason="stop",
                spans=(Span(start=0, version=0),),
                prompt_tokens=len(input_ids),
            )
        return [self.known[turn]] * n

    async def abort(self) -> None:
        """Nothing is under way."""


@dataclass
class CountingActor:
    """An actor, with the bytes of the messages from and to it."""

    actor: Actor
    bytes: int = 0

    def call(self, method: str, *arguments: Any, thread: ActorThread | None = None) -> Awaitable[Any]:
        """As `Actor.call`."""
        if method == "put":
            self.bytes += sum(len(message.content) for message in arguments[0])
        answer = self.actor.call(method, *arguments, thread=thread)
        return self._counted(answer) if method == "take" else answer

    def kill(self) -> None:
        """As `Actor.kill`."""
        self.actor.kill()

    async def _counted(self, answer: Awaitable[Any]) -> Any:
        messages = await answer
        self.bytes += sum(len(message.content) for message in messages)
        return messages


@dataclass
class CountingCluster:
    """This machine, whose actors count."""

    cluster: ProcessCluster
    actors: list[CountingActor] = field(default_factory=list)

    def actor(self, cls: type, *arguments: Any, **known: Any) -> Any:
        """As `Cluster.actor`."""
        self.actors.append(CountingActor(self.cluster.actor(cls, *arguments, **known)))
        return self.actors[-1]


async def measure(this_machine: ProcessCluster, model: Path, count: int, args: argparse.Namespace) -> Row:
    """All groups with `count` workers."""
    part = Part(
        name="agent",
        factory="rollout_workers_agent:Agent",
        config=ToolsConfig(function=("rollout_workers_agent:look",), max_turns=args.turns),
    )
    cluster = CountingCluster(this_machine)
    slots = [BundleSlot(bundle=([[]], 0), gpus=0, host="", is_here=True)] * count
    encoder = PromptTokenizer.load(model, max_prompt_tokens=LONGEST)
    workers = RolloutWorkers(
        cast("Any", cluster),
        slots,
        Generators([part]),
        files=(),
        tokenizer=str(model),
        limits=RunConfig().limits,
    )
    try:
        await workers.start()
        pipeline = GroupPipeline(
            run=RunConfig(), encoder=encoder, generator=workers.of(part), rewards=NoReward()
        )
        engine = Scripted(encoder.tokenizer, args.turns)
        ctx = EngineContext(engine, encoder.tokenizer, Sampling(max_tokens=LONGEST), NoReward())
        prompt = Prompt(prompt_id="p", text=[{"role": "user", "content": "How thick is the thickest book?"}])
        ids, versions = encoder.encode(prompt), Versions(oldest=0, newest=0)

        async def made(number: int) -> GroupOutcome:
            draw = Draw(group_id=number, prompt=prompt, epoch=0)
            fresh = new_samples(draw, ids, count=args.samples, run_seed=0, prefix="")
            return await pipeline.generate(ctx, draw, fresh, lambda: versions)

        await together(made(number) for number in range(2 * max(count, 1)))  # templates are compiled
        settle_heap()
        before = sum(actor.bytes for actor in cluster.actors)
        wall, cpu, away = time.perf_counter(), time.process_time(), children_cpu()
        outcomes = await together(made(number) for number in range(args.groups))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        away = children_cpu() - away
    finally:
        await workers.stop()
    samples = [sample for one in outcomes for sample in one.group.samples]
    check(samples, args)
    tokens = sum(len(sample.response_ids) for sample in samples)
    moved = sum(actor.bytes for actor in cluster.actors) - before
    return {
        "workers": count,
        "groups/s": args.groups / wall,
        "driver's CPU, µs a sample": 1e6 * cpu / len(samples),
        "driver's CPU, µs a token": 1e6 * cpu / tokens,
        "workers' CPU, µs a sample": 1e6 * away / len(samples),
        "bytes moved a token": moved / tokens,
        "tokens a sample": tokens / len(samples),
    }


def children_cpu() -> float:
    """CPU seconds of what the fork server has forked and still runs."""
    servers = psutil.Process().children()
    found = [child.cpu_times() for server in servers for child in server.children()]
    return float(sum(times.user + times.system for times in found))


def check(samples: Sequence[Sample], args: argparse.Namespace) -> None:
    """All turns were played, and the score is right."""
    if len(samples) != args.groups * args.samples:
        raise SystemExit("samples were lost on the way")
    for sample in samples:
        calls, score = len(sample.metadata["tool_calls"]), sample.score
        if calls != args.turns - 1 or score is None or score.value != 1:
            raise SystemExit(f"another sample was expected: {sample}")


def main() -> None:
    """In turns with none, one, two workers; the medians."""
    options = parser(__doc__)
    options.add_argument("--groups", type=int, default=32, help="prompts of a round")
    options.add_argument("--samples", type=int, default=8, help="samples of each")
    options.add_argument("--turns", type=int, default=8, help="answers of a sample, 4 to 40")
    options.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2], help="rollout workers")
    options.add_argument("--rounds", type=int, default=3, help="rounds of all of them")
    args = options.parse_args()
    facts = machine(args.threads)
    model = args.work / "rollout-workers"
    model.mkdir(parents=True, exist_ok=True)
    save_chat_tokenizer(model)
    rows: list[Row] = []
    with contextlib.closing(ProcessCluster(ProcessesConfig())) as cluster:
        cluster.prepare(PRELOAD)
        for number in range(args.rounds):
            for count in args.workers:
                rows.append(asyncio.run(measure(cluster, model, count, args)))
                say(f"round {number + 1}/{args.rounds}, {count} workers: {rows[-1]['groups/s']:.1f} groups/s")
    found = [medians([row for row in rows if row["workers"] == count]) for count in args.workers]
    alone = next(row["groups/s"] for row in found if row["workers"] == min(args.workers))
    for row in found:
        row["times as fast"] = row["groups/s"] / alone
        away = row["workers' CPU, µs a sample"]
        row["workers that one driver feeds"] = int(away / row["driver's CPU, µs a sample"]) or None
    publish("rollout_workers", facts, {"rows": found, "all": rows}, table(found), dry=args.dry)


def medians(rows: Sequence[Row]) -> Row:
    """Of each column."""
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


if __name__ == "__main__":
    main()
