"""`FsdpPlanner`: what `rlcore plan` asks about this trainer."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any

from rlcore import AdapterSpec, ConfigError, LoraOptions
from rlcore_fsdp.config import FsdpConfig
from rlcore_fsdp.plan.needs import Candidate
from rlcore_fsdp.plan.servers import cache_bytes, engines_of
from rlcore_fsdp.plan.step import Step, taken
from rlcore_toolkit import (
    BUCKET_MB,
    ENOUGH,
    LARGE_SHARE,
    MB,
    SLEEPS,
    Machines,
    Plan,
    PlanQuestion,
    RunFile,
    read_config,
)

MOST_GPUS = 1024
"""The most GPUs that a search for more tries."""
ENGINE = "sglang"
NOT_COUNTED = {"engine_group": "groups of engines", "frozen": "frozen models"}
"""Tables of a run that this planner does not count."""


class FsdpPlanner:
    """Runs a step on tensors without memory, and counts their bytes and those of the engines beside."""

    def search(self, question: PlanQuestion) -> Plan:
        """All GPUs, each with a part of every tensor; with recomputation and sleep where they are needed."""
        for flag in question.sizes:
            raise ConfigError(
                f"--{flag}: the trainer 'fsdp' divides each tensor over all ranks, and a model in no other "
                "way; leave it out."
            )
        run = _Run.of(question.file, question.model)
        ways = [False, True] if question.recompute is None else [question.recompute]
        found = run.on(question.machines, ways)
        best = next((one for one in found if not one.reason), None)
        near = None if best else run.on_more_gpus(question.machines, found)
        return run.plan([best] if best else found, near)

    def judge(self, file: RunFile, model: str, machines: Machines, gpus: int | None) -> Plan:
        """The run's own settings; where it does not fit, the nearest that does."""
        for flag, size in (("gpu-bandwidth", machines.gpu_bandwidth), ("network", machines.network)):
            if size:
                raise ConfigError(f"--{flag}: the planner of 'fsdp' counts bytes and no times; leave it out.")
        file.check_trainer()
        file.check_adapter()
        run = _Run.of(file, model)
        ranks = int(file.value("ranks"))
        if gpus is not None and gpus < ranks:
            raise ConfigError(f"--gpus: found {gpus}, expected at least {ranks} for the train workers.")
        whole = replace(machines, gpus=ranks)
        own = run.candidate(whole, recompute=run.settings.recompute, on_host=run.settings.optimizer_on_host)
        own = replace(own, sleep=file.value("sleep"))
        if file.generates:
            settings = file.fields(ENGINE)
            size, count = settings.size("tp_size"), file.value("engines")
            is_given = "mem_fraction_static" in settings.values
            default = file.engine.gpu_share if file.engine and own.is_colocated else None
            share = settings.number("mem_fraction_static") if is_given else default
            own = run.served(own, count or max(1, ranks // size), size, share)
        if not own.reason:
            return run.plan([own], None)
        better = [one for one in run.on(whole, [True]) if not one.reason]
        return run.plan([own], better[0] if better else run.on_more_gpus(whole, [own]))


@dataclass(frozen=True, kw_only=True)
class _Run:
    file: RunFile
    model: str
    config: Mapping[str, Any]
    settings: FsdpConfig
    adapters: tuple[AdapterSpec, ...]
    has_reference: bool

    @classmethod
    def of(cls, file: RunFile, model: str) -> _Run:
        """ConfigError for a run of which this planner does not count all."""
        config = read_config(model, file.registry)
        own = {name: one for name, one in file.fields("trainer").values.items() if name != "name"}
        settings = FsdpConfig.model_validate(own)
        wrong = settings.model_complaints(file.run, {}, config), settings.complaints(file.run, {}, ())
        for complaint in chain(*wrong):
            raise ConfigError(complaint)
        # a run writes out every setting, also an empty list
        given = {name.split(".")[0] for name, value in file.settings.items() if value != []}
        found = [what for table, what in NOT_COUNTED.items() if table in given]
        found += ["a critic"] * file.has_critic + ["a teacher"] * bool(file.value("teacher.model"))
        for what in found:
            raise ConfigError(f"--trainer: the planner of 'fsdp' does not count {what}; plan without it.")
        lora = file.run.lora
        if lora.source:
            raise ConfigError("--lora.from: rlcore plan reads no adapter; say its rank by --lora.rank.")
        runs = [file.run, *(file.run.of_policy(name) for name in file.run.policies)]
        return cls(
            file=file,
            model=model,
            config=config,
            settings=settings,
            adapters=tuple(_spec(one.lora) for one in runs) if lora.rank else (),
            has_reference=file.has_reference and not file.value("reference.ranks"),
        )

    def candidate(self, machines: Machines, *, recompute: bool, on_host: bool = False) -> Candidate:
        """Without engines."""
        file, ranks = self.file, machines.gpus
        tokens = int(file.value("tokens_per_rank"))
        samples = file.value("prompts_per_step") * file.value("group_size") / file.value("minibatches")
        step = Step(
            config=json.dumps(dict(self.config), sort_keys=True),
            dtype="fp32" if file.value("dtype") == "fp32" else "bf16",
            ranks=ranks,
            tokens=tokens,
            longest=file.longest,
            micro_batches=max(1, math.ceil(samples / ranks * file.longest / tokens)),
            recompute=recompute,
            adapters=self.adapters,
            policies=tuple(file.run.policies) if self.adapters else (),
            quantize_base=self.settings.quantize_base,
        )
        found = taken(step)
        is_resident = self.has_reference and file.value("reference.placement") == "resident"
        return Candidate(
            step=step,
            taken=found,
            machines=machines,
            on_host=on_host,
            reference=found.frozen if is_resident else 0,
            bucket=int(file.fields("engine").number("bucket_mb", BUCKET_MB) * MB),
            is_colocated=file.value("placement") == "colocate",
        )

    def served(self, candidate: Candidate, count: int, gpus: int, share: float | None) -> Candidate:
        """With `count` engines of `gpus` GPUs."""
        weights = candidate.served_weights
        engines = engines_of(self.file, self.config, weights, count=count, gpus=gpus, share=share)
        # each GPU of an engine has one of A and B whole
        with_slots = replace(engines, weights=engines.weights + candidate.slots)
        return replace(candidate, served=with_slots)

    def on(self, machines: Machines, ways: Iterable[bool]) -> list[Candidate]:
        """The ways to run there, up to the first that fits."""
        found: list[Candidate] = []
        for recompute in ways:
            plain = self.candidate(machines, recompute=recompute)
            for on_host in (False, True) if recompute and not self.adapters else (False,):
                found.append(self._best(replace(plain, on_host=on_host)))
                if not found[-1].reason:
                    return found
        return found

    def _best(self, plain: Candidate) -> Candidate:
        """With the first engines that have room enough, under the least sleep that leaves it to them."""
        if plain.reason or not self.file.generates or not plain.is_colocated:
            return plain
        ways = list(self._served(plain))
        good = next((way for way in ways if not way.reason and way.room >= ENOUGH), None)
        return good or max(ways, key=lambda way: (not way.reason, way.room, -_over(way)))

    def _served(self, plain: Candidate) -> Iterator[Candidate]:
        engine, gpus = self.file.engine, plain.machines.gpus
        share = engine.gpu_share if engine else None
        sizes = [1 << power for power in range(gpus.bit_length()) if gpus % (1 << power) == 0]
        for sleep in SLEEPS:
            for part in (share, LARGE_SHARE) if sleep == "all" else (share,):
                for size in sizes:
                    yield self.served(replace(plain, sleep=sleep), gpus // size, size, part)

    def on_more_gpus(self, machines: Machines, found: Sequence[Candidate]) -> Candidate | None:
        """The first power of 2 that holds it, tried where what is divided seems to be small enough."""
        last = min(found, key=lambda one: one.parts["total"])
        held, count = sum(last.states.values()), machines.gpus
        while count < MOST_GPUS:
            count *= 2
            seems = held * machines.gpus // count + last.taken.activations // 2
            if seems <= machines.usable:
                best = self.on(replace(machines, gpus=count), [True])[-1]
                if not best.reason:
                    return best
        return None

    def plan(self, layouts: Sequence[Candidate], near: Candidate | None) -> Plan:
        """The answer."""
        first = layouts[0]
        work = {name: value for name, value in asdict(first.step).items() if name != "config"}
        return Plan(
            parameters=first.taken.parameters,
            active=first.taken.active,
            dtype=first.step.dtype,
            publication=first.published,
            cache=cache_bytes(self.config, first.step.dtype),
            workload=work,
            layouts=layouts,
            nearest=near,
            most_gpus=MOST_GPUS,
        )


def _spec(lora: LoraOptions) -> AdapterSpec:
    return AdapterSpec(
        rank=lora.rank, alpha=lora.alpha, targets=lora.targets, dropout=lora.dropout, publish=lora.publish
    )


def _over(candidate: Candidate) -> int:
    return max(phase.total - phase.limit for phase in candidate.phases)
