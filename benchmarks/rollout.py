"""Tokens per second of the `local` engine against `generate` of transformers, on the same model."""

from __future__ import annotations

import argparse
import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from common import (
    Row,
    machine,
    make_model,
    pairs,
    parser,
    publish,
    say,
    smollm2,
    stored_rows,
    table,
    timed,
    verdict,
)
from transformers import AutoModelForCausalLM

from rlcore.api.engine import EngineLaunch
from rlcore.api.generation import Request
from rlcore.api.types import Sampling
from rlcore.engines.client import EngineClient
from rlcore_local.client import LocalClient
from rlcore_local.config import LocalConfig
from rlcore_local.engine import LocalEngine
from rlcore_local.loading import load_tokenizer
from rlcore_local.requests import parse_generate
from rlcore_local.scheduler import Scheduler
from rlcore_local.service import Service
from rlcore_local.settings import Settings
from rlcore_local.weights import Weights
from rlcore_machine import keep_memory
from rlcore_machine.network import free_port
from rlcore_machine.server_process import ServerProcess
from rlcore_machine.tasks import together

VOCAB = 512
PROMPT_TOKENS = 16
GROUP = 8


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model, how many samples of it are asked for at once, and the least ratios to `generate`.

    `layers` 0: SmolLM2-135M-Instruct. `tokens`: of each sample; 0: as the option says.
    """

    layers: int
    width: int
    samples: int
    in_process: float | None
    http: float | None
    tokens: int = 0

    @property
    def name(self) -> str:
        """As it stands in the table."""
        model = f"{self.layers} layers, width {self.width}" if self.layers else "SmolLM2-135M"
        return f"{model}, {self.samples} samples"


CASES = (
    Case(layers=4, width=128, samples=64, in_process=1.3, http=1.0),
    Case(layers=8, width=256, samples=128, in_process=None, http=1.2),
    Case(layers=0, width=0, samples=64, in_process=None, http=None, tokens=24),
)


class Bench:
    """One case: three ways to the same number of tokens. Each returns its tokens per second."""

    def __init__(self, case: Case, args: argparse.Namespace) -> None:
        self.case, self.threads, self.tokens = case, args.threads, case.tokens or args.tokens
        path = args.work / f"model-{case.layers}x{case.width}"
        self.path = (
            make_model(path, layers=case.layers, width=case.width, vocab=VOCAB)
            if case.layers
            else smollm2(path)
        )
        draw = torch.Generator().manual_seed(0)
        groups = case.samples // GROUP
        self.prompts = torch.randint(1, VOCAB, (groups, PROMPT_TOKENS), generator=draw)
        self.seed = 0
        torch.set_num_threads(self.threads)
        keep_memory()
        self.transformers: Any = AutoModelForCausalLM.from_pretrained(self.path, dtype=torch.float32)
        self.transformers.train(False)
        self.service, self.answers = self._service()

    def _service(self) -> tuple[Service, list[Any]]:
        """The engine as its server process has it, without the server."""
        answers: list[Any] = []
        settings = Settings(model_path=self.path, max_batch=self.case.samples, threads=self.threads)
        scheduler = Scheduler(settings.max_batch, answers.extend)
        scheduler.weights = Weights(self.path, torch.float32, PROMPT_TOKENS + self.tokens)
        scheduler.tokenizer = load_tokenizer(self.path)
        service = Service(
            settings,
            scheduler,
            tokenizer=scheduler.tokenizer,
            context_length=PROMPT_TOKENS + self.tokens,
            stop_ids=frozenset(),
        )
        return service, answers

    def hf(self) -> float:
        """`generate`, whose default cuts (top-k 50) are off. It computes no log-probs, which rlcore does."""
        rows = self.prompts.repeat_interleave(GROUP, 0)
        found, seconds = timed(
            lambda: self.transformers.generate(
                rows,
                attention_mask=torch.ones_like(rows),
                do_sample=True,
                top_k=0,
                max_new_tokens=self.tokens,
                pad_token_id=0,
            )
        )
        return self._rate(found[:, PROMPT_TOKENS:].numel(), seconds)

    def in_process(self) -> float:
        """The engine's own requests, scheduler and answers, log-probs and text included."""
        scheduler, self.seed = self.service.scheduler, self.seed + 1
        params = {"max_new_tokens": self.tokens, "n": GROUP, "sampling_seed": self.seed}
        self.answers.clear()

        def work() -> None:
            for prompt in self.prompts.tolist():
                body = {"input_ids": prompt, "sampling_params": params, "return_logprob": True}
                scheduler.add(self.service.sequences(parse_generate(body)))
            while scheduler.waiting or scheduler.running:
                scheduler.step()
            scheduler._hand_over()

        with torch.inference_mode():
            _, seconds = timed(work)
        return self._rate(sum(len(answer["output_ids"]) for _, answer in self.answers), seconds)

    async def http(self, client: EngineClient) -> float:
        """The server and its client, one request with `n` samples a group."""
        self.seed += 1
        sampling = Sampling(max_tokens=self.tokens)
        groups = len(self.prompts)
        session = f"round-{self.seed}/{groups}"
        loop = asyncio.get_running_loop()
        begin = loop.time()
        found = await together(
            client.generate(
                Request(input_ids=ids, sampling=sampling, n=GROUP, seed=self.seed, session=session)
            )
            for ids in self.prompts.tolist()
        )
        seconds = loop.time() - begin
        return self._rate(sum(len(one.token_ids) for group in found for one in group), seconds)

    def _rate(self, tokens: int, seconds: float) -> float:
        assert tokens == self.case.samples * self.tokens, "every sample has the length that was asked for"
        return tokens / seconds

    def over_http(self, measure: Callable[[Callable[[], float]], Any], work: Path) -> Any:
        """`measure` with a function that asks a running server."""
        token = secrets.token_urlsafe(16)
        engine = LocalEngine(LocalConfig(threads=self.threads, max_batch=self.case.samples))
        launch = EngineLaunch(
            model_path=str(self.path),
            host="127.0.0.1",
            port=free_port(),
            token=token,
            dtype="fp32",
            context_length=PROMPT_TOKENS + self.tokens,
            seed=0,
            weights_dir=str(work),
            log_path=str(work / "engine.log"),
        )
        command = engine.command(launch)
        url = f"http://{launch.host}:{launch.port}"
        with (
            ServerProcess(command.argv, name="local", log_path=launch.log_path, env=command.env) as server,
            asyncio.Runner() as runner,
        ):
            server.wait_ready(f"{url}/health", token=token, limit_s=120)
            client = LocalClient(url, token)
            try:
                return measure(lambda: runner.run(self.http(client)))
            finally:
                runner.run(client.close())


def main() -> None:
    """Every case, in process and over HTTP, each against `generate` in alternation."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=5, help="pairs of measurements")
    options.add_argument("--tokens", type=int, default=128, help="tokens of each sample (SmolLM2: 24)")
    names = [case.name for case in CASES]
    options.add_argument("--cases", nargs="+", choices=names, default=names, help="which ones")
    args = options.parse_args()
    facts = machine(args.threads)
    rows: list[Row] = []
    for case in CASES:
        if case.name not in args.cases:
            rows += [row for row in stored_rows("rollout") if row["case"] == case.name]
            continue
        say(f"{case.name}: warming up")
        bench = Bench(case, args)
        bench.hf(), bench.in_process()
        found = pairs(bench.in_process, bench.hf, args.repeats, "in process, tokens/s")
        rows.append(_row(case, "in process", found, case.in_process))

        def measure(ask: Callable[[], float], bench: Bench = bench) -> tuple[float, float, float]:
            ask()
            return pairs(ask, bench.hf, args.repeats, "over HTTP, tokens/s")

        rows.append(_row(case, "over HTTP", bench.over_http(measure, args.work), case.http))
    publish("rollout", facts, {"rows": rows, "tokens": args.tokens}, table(rows), dry=args.dry)


def _row(case: Case, way: str, found: tuple[float, float, float], target: float | None) -> Row:
    ours, theirs, ratio = found
    return {
        "case": case.name,
        "engine": way,
        "rlcore, tokens/s": ours,
        "`generate`, tokens/s": theirs,
        "ratio": ratio,
        "target": "" if target is None else f"≥ {target:g}",
        "met": "" if target is None else verdict(ratio >= target),
    }


if __name__ == "__main__":
    main()
