"""`MegatronPlanner`: what `rlcore plan` asks about this trainer."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from rlcore import ConfigError, ModelError, ModelFacts, published_sizes
from rlcore_megatron.plan.adapters import UncountedAdapterError
from rlcore_megatron.plan.bounds import bounds
from rlcore_megatron.plan.candidate import Candidate
from rlcore_megatron.plan.engines import Engines, cache_values
from rlcore_megatron.plan.layout import Layout
from rlcore_megatron.plan.memory import BYTES
from rlcore_megatron.plan.phases import Run
from rlcore_megatron.plan.run_servers import (
    by_sleep,
    engines_on,
    gpus_beside,
    run_of,
    run_without_engines,
)
from rlcore_megatron.plan.search import (
    FLAGS,
    MOST_GPUS,
    Choices,
    apart,
    judge,
    nearest,
    on_more_gpus,
    search,
)
from rlcore_megatron.plan.settings import layout_of, workload
from rlcore_megatron.plan.weights import active_parameters, parameters
from rlcore_toolkit import (
    SLEEPS,
    Bounds,
    Machines,
    Plan,
    PlanQuestion,
    RunFile,
    facts_of,
    read_config,
)

NAMES = {flag.removeprefix("--"): name for name, flag in FLAGS.items()}


class MegatronPlanner:
    """Counts the bytes of megatron's buffers, activations and publications, and of the engines beside it."""

    def search(self, question: PlanQuestion) -> Plan:
        """Every layout with its engines, the best first; where none fits, more GPUs or a smaller model."""
        on = _Search(question, read_config(question.model, question.file.registry))
        candidates = on(question.machines)
        if any(candidate.fits for candidate in candidates):
            return _plan(candidates)
        more = on_more_gpus(on, question.machines)
        plan = _plan(candidates, more)
        return replace(plan, smaller=_smaller(question, plan.parameters))

    def judge(self, file: RunFile, model: str, machines: Machines, gpus: int | None) -> Plan:
        """The layout of the file, and where it does not fit, the nearest one that does."""
        config = read_config(model, file.registry)
        facts = facts_of(config, f"--model {model}", file.registry)
        layout = layout_of(file, facts)
        run = run_of(file, config, facts, layout)
        others = gpus_beside(file, run)
        if gpus is not None and gpus < layout.world + sum(others.values()):
            beside = "".join(f", and {count} for {name}" for name, count in others.items())
            raise ConfigError(
                f"--gpus: found {gpus}, expected at least {layout.world} for the train workers{beside}."
            )
        whole = replace(machines, gpus=layout.world)
        candidate = judge(facts, layout, run, whole)
        near = None if candidate.fits else _nearest(file, config, facts, whole, candidate)
        best = bounds(facts, run, candidate.needs, whole) if candidate.needs else Bounds()
        plan = _plan([candidate], near)
        return replace(plan, apart=apart(candidate), bounds=best)


class _Search:
    """The layouts of the model with `config` on any machines, in the run that `question` is about."""

    def __init__(self, question: PlanQuestion, config: Mapping[str, Any]) -> None:
        file = question.file
        self._question, self._config = question, config
        self.facts = facts_of(config, f"--model {question.model}", file.registry)
        run = run_without_engines(file, config, self.facts, Layout(world=1))
        self._run_of = _under_each_layout(file, run)

    def __call__(self, machines: Machines) -> list[Candidate]:
        """The best first."""
        question = self._question
        fixed = {NAMES[flag]: size for flag, size in question.sizes.items()}
        engines = list(engines_on(question.file, self._config, machines.gpus, machines.per_node))
        least = min((each.pipeline for group in engines for each in group), default=1)
        whole = [group for group in engines if all(each.pipeline == least for each in group)]
        staged = by_sleep([group for group in engines if group not in whole], SLEEPS)
        choices = Choices(
            recompute=question.recompute,
            engines=by_sleep(whole, SLEEPS),
            staged=staged if any(staged.values()) else {},
        )
        return search(self.facts, machines, self._run_of, fixed, choices)


def _smaller(question: PlanQuestion, count: int) -> str:
    """The largest published size with fewer than `count` parameters that fits; empty: there is none."""
    registry, plain = question.file.registry, replace(question, sizes={})
    configs = {name: read_config(name, registry) for name in published_sizes(registry)}
    searches = {}
    for name, config in configs.items():
        with suppress(UncountedAdapterError, ModelError):  # such as a family that two plugins claim
            searches[name] = _Search(plain, config)
    sizes = {name: parameters(search.facts) for name, search in searches.items()}
    for name in sorted((name for name in sizes if sizes[name] < count), key=sizes.__getitem__, reverse=True):
        if any(candidate.fits for candidate in searches[name](question.machines)):
            return name
    return ""


def _under_each_layout(file: RunFile, run: Run) -> Callable[[Layout], Run]:
    """`run` with the work that a layout leaves to each rank."""
    return lambda layout: replace(run, work=workload(file, layout))


def _nearest(
    file: RunFile, config: Mapping[str, Any], facts: ModelFacts, machines: Machines, candidate: Candidate
) -> Candidate | None:
    """What fits and differs least from the `candidate` of the file."""
    run = candidate.run
    sleeps = SLEEPS[SLEEPS.index(run.sleep) :] if run.is_colocated else (run.sleep,)
    engines: Mapping[str, Sequence[tuple[Engines, ...]]]
    if len(run.engines) == 1:
        [own] = run.engines
        gpus = machines.gpus if run.is_colocated else own.count * own.gpus
        others = [each for each in engines_on(file, config, gpus, machines.per_node) if each != run.engines]
        engines = by_sleep([run.engines, *others], sleeps)
    else:  # groups keep their sizes
        engines = dict.fromkeys(sleeps, (run.engines,)) if run.engines else {}
    plain = _under_each_layout(file, replace(run, engines=()))
    return nearest(facts, machines, plain, candidate, Choices(engines=engines))


def _plan(candidates: Sequence[Candidate], near: Candidate | None = None) -> Plan:
    facts, run = candidates[0].facts, candidates[0].run
    return Plan(
        parameters=parameters(facts),
        active=active_parameters(facts),
        dtype=run.work.dtype,
        publication=run.published_bytes(facts),
        # numbers of a token in the cache × bytes of one, on all GPUs of an engine together
        cache=cache_values(facts) * BYTES[run.published_dtype],
        workload=asdict(run.work),
        layouts=candidates,
        nearest=near,
        most_gpus=MOST_GPUS,
    )
