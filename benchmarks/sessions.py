"""64 tool-using agents at once through the generator `session`: what a turn costs, and whether all get one.

The agents are in a process of their own; this one is rlcore's side. Against an engine that answers at once,
the time of a turn is rlcore's alone. On both engines, every token is compared with what the engine drew.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import secrets
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import Row, machine, parser, publish, say, table, verdict
from sessions_clients import POOL

from rlcore.api.engine import EngineLaunch
from rlcore.api.generation import Completion, GenerationClient
from rlcore.api.tokens import Tokenizer, load_tokenizer
from rlcore.api.types import GenerationStatus, Prompt, Sample, Sampling, Span
from rlcore.engines.client import EngineClient
from rlcore.rollout.context import EngineContext
from rlcore_local.config import LocalConfig
from rlcore_local.engine import LocalEngine
from rlcore_machine import settle_heap
from rlcore_machine.network import free_port
from rlcore_machine.server_process import ServerProcess
from rlcore_machine.tasks import together
from rlcore_session.config import SessionConfig
from rlcore_session.generator import SessionGenerator
from rlcore_testing.caller import BODIES, HERMES_END, THOUGHTS, make_caller
from rlcore_testing.token_engine import CountingReward

CONTEXT = 1024
ANSWER = 80
START_LIMIT_S = 120.0
CPU_TARGET_MS = 5.0
P99_TARGET_MS = 50.0
STARVED = 3.0
"""A session that waits for its answers so many times the median has starved."""
SLOWEST = "longest wait / median"


class Instant:
    """An engine that has its answer ready: what the model of `make_caller` says."""

    def __init__(self, tokenizer: Any) -> None:
        self._texts = ["".join((*THOUGHTS, "<tool_call>", body, "</tool_call>")) for body in BODIES]
        self._answers = [
            tuple(tokenizer.encode(text + HERMES_END, add_special_tokens=False)) for text in self._texts
        ]

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
        """One answer, chosen by the seed."""
        ids = self._answers[seed % 10]
        return [
            Completion(
                token_ids=ids,
                log_probs=(-0.5,) * len(ids),
                text=self._texts[seed % 10],
                finish_reason="stop",
                spans=(Span(start=0, version=0),),
                prompt_tokens=len(input_ids),
            )
        ]

    async def abort(self) -> None:
        """Nothing is ever under way."""


@dataclass
class Logged:
    """An engine whose requests are written down."""

    engine: GenerationClient
    log: list[tuple[tuple[int, ...], Completion]] = field(default_factory=list)

    async def generate(
        self, input_ids: Sequence[int], sampling: Sampling, **how: Any
    ) -> Sequence[Completion]:
        """As the engine does."""
        found = await self.engine.generate(input_ids, sampling, **how)
        self.log += [(tuple(input_ids), one) for one in found]
        return found

    async def abort(self) -> None:
        """As the engine does."""
        await self.engine.abort()


async def measure(
    engine: GenerationClient, tokenizer: Tokenizer, args: argparse.Namespace, name: str, *, sessions: int
) -> Row:
    """All sessions on `engine`. Ends where a trained token is not what the engine drew after its prefix."""
    logged = Logged(engine)
    ctx = EngineContext(
        logged, tokenizer, Sampling(max_tokens=CONTEXT), CountingReward(), context_length=CONTEXT
    )
    task = {"turns": args.turns, "shortest": args.shortest, "longest": args.longest, "tail": 4.0}
    POOL.begin(sessions, {**task, "max_tokens": ANSWER})
    generator = SessionGenerator(SessionConfig(agent="sessions_clients:hand_over", max_agents=sessions))
    try:
        made = await together(generator.generate(ctx, _pending(number)) for number in range(sessions))
    finally:
        await generator.close()
    trained = _check(made, logged.log)
    turns = sorted(second for one in POOL.found for second in one["turns"])
    waits = [sum(one["turns"]) for one in POOL.found]
    return {
        "engine": name,
        "sessions": sessions,
        "turns": len(turns),
        "tool calls": sum(one["calls"] for one in POOL.found),
        "tokens compared": trained,
        "re-tokenised": 0,
        "CPU ms a turn": 1000 * POOL.cpu / len(turns),
        "turn p50 ms": 1000 * statistics.median(turns),
        "turn p99 ms": 1000 * turns[math.ceil(0.99 * len(turns)) - 1],
        SLOWEST: max(waits) / statistics.median(waits),
    }


async def median(engine: GenerationClient, tokenizer: Tokenizer, args: argparse.Namespace, name: str) -> Row:
    """The measurement whose p99 is the median of `--repeats`.

    Before them, one session: imports are made and the chat template is compiled.
    """
    await measure(engine, tokenizer, args, name, sessions=1)
    rows = [await measure(engine, tokenizer, args, name, sessions=args.sessions) for _ in range(args.repeats)]
    return sorted(rows, key=lambda row: float(row["turn p99 ms"]))[len(rows) // 2]


def _pending(number: int) -> Sample:
    prompt = Prompt(prompt_id=f"p{number}", text=f"look at {number}")
    return Sample(
        prompt=prompt, prompt_ids=(1,), group_id=number, index=0, rollout_id=f"{number}.0", seed=number
    )


def _check(made: Sequence[Sequence[Sample]], log: Sequence[tuple[tuple[int, ...], Completion]]) -> int:
    """The number of trained tokens; each is what the engine drew after exactly the tokens before it."""
    drawn = {ids: one for ids, one in log}
    trained = 0
    for (sample,) in made:  # one trajectory, so no history was read in anew
        if sample.status not in (GenerationStatus.COMPLETED, GenerationStatus.TRUNCATED):
            raise SystemExit(f"session {sample.rollout_id}: {sample.status}, {sample.metadata}")
        ids, start, place = sample.prompt_ids + sample.response_ids, len(sample.prompt_ids), 0
        while place < len(sample.response_ids):
            if not sample.loss_mask[place]:
                place += 1
                continue
            one = drawn[ids[: start + place]]
            end = place + len(one.token_ids)
            if (
                sample.response_ids[place:end] != one.token_ids
                or sample.log_probs[place:end] != one.log_probs
            ):
                raise SystemExit(f"session {sample.rollout_id}: response token {place} is not the engine's")
            trained, place = trained + len(one.token_ids), end
    if trained != sum(len(one.token_ids) for _, one in log):
        raise SystemExit("the engine drew tokens that no sample has")
    return trained


# --- the real engine -----------------------------------------------------------------------------------


async def real(path: Path, args: argparse.Namespace) -> Row:
    """On the server that a run starts, through the client that a run uses."""
    launch = EngineLaunch(
        model_path=str(path),
        host="127.0.0.1",
        port=free_port(),
        token=secrets.token_hex(16),
        dtype="fp32",
        context_length=CONTEXT,
        seed=0,
        weights_dir=str(args.work),
        log_path=str(args.work / "sessions-engine.log"),
    )
    command = LocalEngine(LocalConfig(threads=args.threads, max_batch=args.sessions)).command(launch)
    url = f"http://{launch.host}:{launch.port}"
    with ServerProcess(command.argv, name="local", log_path=launch.log_path, env=command.env) as server:
        await asyncio.to_thread(server.wait_ready, f"{url}/health", limit_s=START_LIMIT_S, token=launch.token)
        async with EngineClient(url, launch.token) as client:
            return await median(client, load_tokenizer(path), args, "local")


def main() -> None:
    """Both engines, and the verdict."""
    options = parser(__doc__)
    options.add_argument("--sessions", type=int, default=64, help="agents at once")
    options.add_argument("--turns", type=int, default=4, help="answers of the policy in each")
    options.add_argument("--repeats", type=int, default=3, help="measurements of each engine")
    options.add_argument("--shortest", type=float, default=0.05, help="seconds that a tool takes at least")
    options.add_argument("--longest", type=float, default=0.5, help="seconds that a tool takes at most")
    args = options.parse_args()
    facts = machine(args.threads)
    path = make_caller(args.work / "model-sessions", context=CONTEXT)
    tokenizer = load_tokenizer(path)
    settle_heap()  # as a run does when it has started
    say(f"{args.sessions} sessions, an engine that answers at once")
    rows = [asyncio.run(median(Instant(tokenizer), tokenizer, args, "instant"))]
    say(f"{args.sessions} sessions, the local engine")
    rows.append(asyncio.run(real(path, args)))
    text = "\n\n".join([table(rows), table(_verdicts(rows))])
    publish("sessions", facts, {"rows": rows}, text, dry=args.dry)


def _verdicts(rows: Sequence[Row]) -> list[Row]:
    instant, local = rows
    cpu, slow = max(row["CPU ms a turn"] for row in rows), local[SLOWEST]
    p99 = instant["turn p99 ms"]
    return [
        {"target": "nothing is re-tokenised", "measured": 0, "met": verdict(True)},
        {
            "target": f"CPU ≤ {CPU_TARGET_MS:g} ms a turn",
            "measured": cpu,
            "met": verdict(cpu <= CPU_TARGET_MS),
        },
        {
            "target": f"p99 ≤ {P99_TARGET_MS:g} ms where the engine answers at once",
            "measured": p99,
            "met": verdict(p99 <= P99_TARGET_MS),
        },
        {
            "target": f"no session waits {STARVED:g} times the median (local)",
            "measured": slow,
            "met": verdict(slow < STARVED),
        },
    ]


if __name__ == "__main__":
    main()
