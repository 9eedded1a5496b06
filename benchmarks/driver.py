"""What the driver's own work costs, from an engine's answer to the ranks' shares of a batch.

The engine is a real server in a process of its own that has its answers ready; client, generator, reward
process, filter, batch and split are those of a run. Each phase is done for all groups before the next begins,
so that each can be timed: CPU seconds are those of the driver's process alone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import gc
import math
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context

import psutil
from common import BENCHMARKS, Row, machine, parser, publish, say, table, verdict

from rlcore.api.part import RewardPart
from rlcore.api.run_config import RunConfig
from rlcore.api.types import Group, Prompt, Sampling
from rlcore.data.prompt_tokenizer import PromptTokenizer
from rlcore.engines.client import EngineClient
from rlcore.rollout.batch import split, to_batch
from rlcore.rollout.context import EngineContext
from rlcore.rollout.draw import Draw, GroupOutcome, Versions, new_samples
from rlcore.rollout.pipeline import GroupPipeline
from rlcore.rollout.rewards import RewardPool
from rlcore_filters.config import DuplicatesConfig
from rlcore_filters.filters import Duplicates
from rlcore_machine import settle_heap
from rlcore_machine.network import free_port
from rlcore_machine.server_process import ServerProcess
from rlcore_machine.tasks import together
from rlcore_single_turn.config import SingleTurnConfig
from rlcore_single_turn.generator import SingleTurn
from rlcore_testing.token_engine import ByteTokenizer
from rlcore_text.config import ExactMatchConfig

PROMPT = tuple(range(200))
TICK_S = 0.002
LAG_LIMIT_MS = 20.0
CPU_LIMIT_US = 0.4
BYTES_LIMIT = 20.0
GPU_TOKENS = 2000.0
"""Tokens a second that one GPU is assumed to sample; nothing here measures it."""


Lags = list[tuple[float, float]]


@dataclass
class Phases:
    """CPU and wall seconds, and bytes of this process, by phase."""

    tokens: int
    rows: list[Row] = field(default_factory=list)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What is done within is one phase."""
        before, collected = _resident(), _Collections()
        wall, cpu = time.perf_counter(), time.process_time()
        with collected:
            yield
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        self.rows.append(
            {
                "phase": name,
                "CPU µs a token": 1e6 * cpu / self.tokens,
                "of it garbage collection": 1e6 * collected.seconds / self.tokens,
                "wall µs a token": 1e6 * wall / self.tokens,
                "bytes a token": (_resident() - before) / self.tokens,
            }
        )

    def total(self, name: str) -> float:
        """Of all phases."""
        return sum(float(row[name]) for row in self.rows)


class _Collections:
    """The seconds of the garbage collector, within."""

    def __init__(self) -> None:
        self.seconds, self._begin = 0.0, 0.0

    def __enter__(self) -> None:
        gc.callbacks.append(self._note)

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._begin = time.perf_counter()
        else:
            self.seconds += time.perf_counter() - self._begin


def _resident() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what is free is given back, so that what is held can be told
    return int(psutil.Process().memory_info().rss)


@asynccontextmanager
async def lag(found: Lags) -> AsyncIterator[None]:
    """Within, by how many milliseconds a timer of the event loop comes late; and the CPU time meanwhile.

    The second leaves out what other processes took.
    """

    async def tick() -> None:
        while True:
            begin, cpu = time.perf_counter(), time.thread_time()
            await asyncio.sleep(TICK_S)
            late = time.perf_counter() - begin - TICK_S
            found.append((1000 * late, 1000 * (time.thread_time() - cpu)))

    ticking = asyncio.create_task(tick())
    try:
        yield
    finally:
        ticking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ticking


async def drive(url: str, pool: RewardPool, args: argparse.Namespace) -> tuple[Phases, Lags]:
    """All groups through all phases; the lags of the event loop."""
    phases, lags = Phases(args.groups * args.samples * args.tokens), Lags()
    async with EngineClient(url, None, concurrency=args.concurrency) as client:
        tokenizer = ByteTokenizer()
        pipeline = GroupPipeline(
            run=RunConfig(),
            encoder=PromptTokenizer(tokenizer, len(PROMPT)),
            generator=SingleTurn(SingleTurnConfig()),
            rewards=pool,
        )
        ctx = EngineContext(client, tokenizer, Sampling(max_tokens=args.tokens), pool)
        versions = Versions(oldest=0, newest=0)

        async def made(number: int) -> GroupOutcome:
            draw = Draw(group_id=number, prompt=Prompt(prompt_id=str(number), text="p", label="l"), epoch=0)
            fresh = new_samples(draw, PROMPT, count=args.samples, run_seed=0, prefix="")
            return await pipeline.generate(ctx, draw, fresh, lambda: versions)

        await pipeline.score(await made(-1))  # what is made once, in engine, client and reward pool
        settle_heap()  # as a run does when it has started
        with phases.phase("client"):
            async with lag(lags):
                outcomes = await together(made(number) for number in range(args.groups))
        with phases.phase("rewards"):
            async with lag(lags):
                outcomes = await together(map(pipeline.score, outcomes))
    groups = _scored(outcomes)
    del outcomes
    with phases.phase("filter"):
        judge = Duplicates(DuplicatesConfig(min_distinct=2))
        groups = [group for one in groups if (group := judge.judge(one).group) is not None]
    with phases.phase("batch"):
        batch = to_batch(groups, minibatches=1, version=0)
    with phases.phase(f"split, {args.ranks} ranks"):
        shares = split(batch, args.ranks)
    if sum(share.tokens.numel() for share in shares) != phases.tokens + len(batch) * len(PROMPT):
        raise SystemExit("tokens were lost on the way")
    return phases, lags


def _scored(outcomes: Sequence[GroupOutcome]) -> list[Group]:
    if any(one.reason is not None for one in outcomes):
        raise SystemExit(f"a group failed: {next(one.error for one in outcomes if one.reason)}")
    return [one.group for one in outcomes]


def measure(form: str, args: argparse.Namespace) -> tuple[Phases, Lags]:
    """On a scripted engine of that form."""
    port = free_port()
    engine = [str(BENCHMARKS / "driver_engine.py"), "--form", form, "--tokens", str(args.tokens)]
    argv = [sys.executable, *engine, "--port", str(port)]
    part = RewardPart(name="exact_match", factory="rlcore_text.rewards:ExactMatch", config=ExactMatchConfig())
    url = f"http://127.0.0.1:{port}"

    async def driven() -> tuple[Phases, Lags]:
        async with RewardPool([part], workers=1, timeout=600.0) as pool:
            return await drive(url, pool, args)

    with ServerProcess(argv, name="scripted", log_path=args.work / f"driver-{form}.log") as server:
        server.wait_ready(f"{url}/server_info", limit_s=60.0, token="")
        return asyncio.run(driven())


def main() -> None:
    """Both forms, and the verdict."""
    options = parser(__doc__)
    options.add_argument("--groups", type=int, default=16, help="prompts of the step")
    options.add_argument("--samples", type=int, default=8, help="responses to each")
    options.add_argument("--tokens", type=int, default=32768, help="tokens of each response")
    options.add_argument("--ranks", type=int, default=4, help="data-parallel ranks of the trainer")
    options.add_argument("--concurrency", type=int, default=16, help="requests under way at once")
    options.add_argument("--forms", nargs="+", default=["local", "sglang"], help="how the engine answers")
    args = options.parse_args()
    facts = machine(args.threads)
    sums, texts = list[Row](), list[str]()
    for form in args.forms:
        say(f"{args.groups} x {args.samples} x {args.tokens} tokens, the form of {form}")
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:  # with memory of its own
            phases, lags = process.submit(measure, form, args).result()
        cpu, held = (
            phases.total("CPU µs a token"),
            sum(float(row["bytes a token"]) for row in phases.rows[:3]),
        )
        rate = 1e6 / phases.total("wall µs a token")
        late, busy = sorted(one for one, _ in lags), max(one for _, one in lags)
        texts.append(
            f"`{form}`, {args.groups} × {args.samples} × {args.tokens} tokens:\n\n{table(phases.rows)}"
        )
        sums.append(
            {
                "engine": form,
                "CPU µs a token": cpu,
                f"≤ {CPU_LIMIT_US:g} µs": verdict(cpu <= CPU_LIMIT_US),
                "bytes a token held": held,
                f"≤ {BYTES_LIMIT:g} bytes": verdict(held <= BYTES_LIMIT),
                "lag p99 ms": (p99 := late[math.ceil(0.99 * len(late)) - 1]),
                "longest lag ms": late[-1],
                "longest work between two ticks, CPU ms": busy,
                f"all ≤ {LAG_LIMIT_MS:g} ms": verdict(max(p99, late[-1], busy) <= LAG_LIMIT_MS),
                "tokens/s": rate,
                f"GPUs at {GPU_TOKENS:g} tokens/s": int(rate / GPU_TOKENS),
            }
        )
    publish("driver", facts, {"rows": sums}, "\n\n".join([table(sums), *texts]), dry=args.dry)


if __name__ == "__main__":
    main()
