"""What `rlcore plan` prints for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from rlcore import ModelFacts
from rlcore_plan.bounds import Bounds
from rlcore_plan.explanation import explain_rank
from rlcore_plan.layout import Layout, Recompute
from rlcore_plan.memory import of_stage
from rlcore_plan.phases import Machines, Needs, Run
from rlcore_plan.search import MOST_GPUS, Candidate, apart, cache_bytes
from rlcore_plan.units import GB, count_text, size_text, table_unit
from rlcore_plan.weights import active_parameters, parameters

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

CACHE_TOKENS = 1000
PARTS = ("weights", "grads", "optim.", "activ.")
STARRED = "* with every layer computed again in the backward pass"
HOSTED = "† with the optimizer's states in host memory: --megatron.optimizer-cpu-offload"


def show_layouts(
    model: str,
    facts: ModelFacts,
    machines: Machines,
    run: Run,
    candidates: Sequence[Candidate],
    more: Candidate | None,
    count: int,
    *,
    explain: bool,
) -> None:
    """The layouts of a search, `count` of each kind. `more`: where none fits, one that does on more GPUs."""
    console = _console()
    _summary(console, model, facts, run)
    fitting, others = (
        [candidate for candidate in candidates if candidate.fits],
        [candidate for candidate in candidates if not candidate.fits],
    )
    shown = fitting[:count]
    if fitting:
        best = fitting[0]
        fit = "1 layout fits" if len(fitting) == 1 else f"{len(fitting)} layouts fit"
        cut = f", the best {len(shown)} of them" if len(shown) < len(fitting) else ""
        console.print(f"[bold]{fit}[/] into {_usable(machines)}{cut}:")
        console.print(_layouts(shown))
        console.print("The best, stage by stage:")
        console.print(_stages(facts, best))
        console.print(f"rlcore train … {flags(best)}", highlight=False, soft_wrap=True)
        if explain:
            explain_rank(console, facts, best)
    else:
        console.print(f"[bold]No layout fits[/] into {_usable(machines)}.")
        found = (
            f"Nearest that fits: {_name(more)} on {more.layout.world} GPUs."
            if more
            else f"Nor does one on up to {MOST_GPUS} GPUs."
        )
        console.print(found, highlight=False)
    if others:
        cut = f"; {count} of them" if count < len(others) else ""
        console.print(f"\n{_counted(len(others), 'layout')} ruled out{cut}:", highlight=False)
        console.print(_refused(others[:count]))
    printed = [*shown, *others[:count], *([more] if more else ())]
    for is_used, text in (
        (any(candidate.layout.recompute for candidate in printed), STARRED),
        (any(candidate.run.optimizer.on_host for candidate in printed), HOSTED),
    ):
        if is_used:
            console.print(text)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _usable(machines: Machines) -> str:
    """What a layout may take of a GPU; CUDA, NCCL and gaps between tensors take the rest."""
    return f"the usable {machines.usable / GB:.1f} of {machines.memory / GB:g} GB of each GPU"


def show_judged(
    model: str,
    facts: ModelFacts,
    machines: Machines,
    candidate: Candidate,
    near: Candidate | None,
    best: Bounds,
    *,
    explain: bool,
) -> None:
    """The layout of a file."""
    console = _console()
    _summary(console, model, facts, candidate.run)
    verdict = (
        "[bold green]it fits[/]" if candidate.fits else f"[bold red]it does not fit[/]: {candidate.reason}"
    )
    layout = candidate.layout
    console.print(
        f"{layout.name} on {_counted(layout.world, 'GPU')}{_served(candidate.run)}: {verdict}.",
        highlight=False,
    )
    if candidate.needs is not None:
        console.print(_phases(candidate.needs))
        if candidate.needs.host:
            console.print(f"Host memory of a node: {size_text(candidate.needs.host)}.", highlight=False)
    for line in _bounds(best):
        console.print(line, highlight=False)
    if explain and candidate.needs is not None:
        explain_rank(console, facts, candidate)
    if near is not None:
        served = "" if near.run.engines == candidate.run.engines else _served(near.run)
        console.print(f"Nearest that fits: {_name(near)}{served}", highlight=False)
        told = f"{flags(near, layout)}{_engine_flags(near, candidate, machines.per_node)}"
        console.print(f"rlcore train … {told}", highlight=False, soft_wrap=True)
    elif stuck := apart(candidate):
        for reason in stuck:
            console.print(f"No layout of the policy changes this: {reason}.", highlight=False)
    elif not candidate.fits:
        console.print(f"No layout of {machines.gpus} GPUs fits.")


def _served(run: Run) -> str:
    """`, 2 engines of 8 GPUs`."""
    return "".join(
        f", {_counted(engines.count, f'{engines.group} engine'.strip())} of {_counted(engines.gpus, 'GPU')}"
        for engines in run.engines
    )


def flags(candidate: Candidate, of_file: Layout | None = None) -> str:
    """How `rlcore train` is told; `of_file`: what the run file beside the flags says."""
    layout = candidate.layout
    sizes = {
        "tensor-model-parallel-size": layout.tensor,
        "pipeline-model-parallel-size": layout.pipeline,
        "context-parallel-size": layout.context,
        "expert-model-parallel-size": layout.expert,
        "expert-tensor-parallel-size": layout.expert_tensor,
    }
    told = [f"--ranks {layout.world}"]
    told += [f"--megatron.{name} {size}" for name, size in sizes.items() if size > 1]
    told += [f"--megatron.num-layers-in-last-pipeline-stage {layout.stages[-1]}"] if layout.stages else []
    told += ["--megatron.sequence-parallel"] if layout.sequence else []
    told += ["--megatron.optimizer-cpu-offload"] if candidate.run.optimizer.on_host else []
    given = (of_file or layout).recompute
    if {layout.recompute, given} != {DEFAULT_OF_GPU}:
        told += _recompute_flags(layout.recompute)
    if given is not None and given.distributed and given != layout.recompute:
        told.append("--megatron.distribute-saved-activations false")
    return " ".join(told)


DEFAULT_OF_GPU = Recompute()


def _recompute_flags(recompute: Recompute | None) -> list[str]:
    if recompute is None:
        return ["--megatron.recompute-granularity none"]
    method = "block" if recompute.block else "uniform"
    return [
        f"--megatron.recompute-granularity full --megatron.recompute-method {method}",
        f"--megatron.recompute-num-layers {recompute.layers}",
    ]


def _engine_flags(near: Candidate, candidate: Candidate, per_node: int) -> str:
    """Where other engines are what fits."""
    if near.run.engines == candidate.run.engines:
        return ""
    (engines,) = near.run.engines
    kind = "" if candidate.run.engines[0].gpus > 1 else " --engine sglang"  # one of a GPU may be of any kind
    nodes = f" --sglang.nnodes {engines.gpus // per_node}" if engines.gpus > per_node else ""
    return f"{kind} --engines {engines.count} --sglang.tp-size {engines.tensor}{nodes}"


def _console() -> Console:
    from rich.console import Console

    return Console()


def _summary(console: Console, model: str, facts: ModelFacts, run: Run) -> None:
    work = run.work
    active = f", {count_text(active_parameters(facts))} of them active" if facts.experts else ""
    dtype = run.published_dtype
    cache = cache_bytes(facts, dtype) * CACHE_TOKENS
    console.print(f"[bold]{model}[/]: {count_text(parameters(facts))} parameters{active}, {work.dtype}.")
    console.print(
        f"A publication carries {size_text(run.published_bytes(facts))}; an engine's KV cache takes "
        f"{size_text(cache)} for {CACHE_TOKENS} tokens.",
        highlight=False,
        soft_wrap=True,
    )


def _name(candidate: Candidate) -> str:
    marks = " *" * bool(candidate.layout.recompute) + " †" * bool(candidate.run.optimizer.on_host)
    return f"{candidate.layout.name}{marks}"


def _layouts(candidates: Sequence[Candidate]) -> Table:
    counted = [(candidate, candidate.memory) for candidate in candidates if candidate.memory is not None]
    unit, name = table_unit(memory.total for _, memory in counted)
    table = _empty("layout", *PARTS, f"total {name}")
    for candidate, memory in counted:
        parts = (memory.weights, memory.gradients, memory.optimizer, memory.activations + memory.workspace)
        table.add_row(_name(candidate), *(f"{part / unit:.1f}" for part in (*parts, memory.total)))
    return table


def _refused(candidates: Sequence[Candidate]) -> Table:
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(box=SIMPLE)
    table.add_column("layout", no_wrap=True)
    table.add_column("why not")
    for candidate in candidates:
        table.add_row(_name(candidate), candidate.reason)
    return table


def _stages(facts: ModelFacts, best: Candidate) -> Table:
    """Every pipeline stage of the best layout, the same ones once."""
    layout, run, last = best.layout, best.run, best.layout.pipeline - 1
    shown = [
        (number, of_stage(facts, layout, run.work, number, run.optimizer, run.roles))
        for number in sorted({0, min(1, last), max(0, last - 1), last})
    ]
    unit, title = table_unit(memory.total for _, memory in shown)
    table = _empty("stage", *PARTS, "work", f"total {title}")
    for number, memory in shown:
        names = ("weights", "gradients", "optimizer", "activations", "workspace")
        values = [asdict(memory)[name] for name in names]
        table.add_row(
            f"{number + 1} of {last + 1}", *(f"{value / unit:.2f}" for value in (*values, memory.total))
        )
    return table


def _bounds(best: Bounds) -> Iterator[str]:
    if best.rollout is not None:
        yield (
            f"Memory bandwidth: at most {best.tokens:.0f} tokens/s of an engine, so a rollout of the longest "
            f"responses takes {best.rollout:.0f} s or more."
        )
    if best.publication is not None:
        yield f"Network: a publication takes {best.publication:.1f} s or more."


def _phases(needed: Needs) -> Table:
    """What is on the fullest GPU in each phase."""
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(box=SIMPLE)
    table.add_column("phase", no_wrap=True)
    unit, name = table_unit(phase.total for phase in needed.phases)
    for title in (name, "of"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("what is on the fullest GPU")
    for phase in needed.phases:
        items = ", ".join(f"{what} {size / unit:.1f}" for what, size in phase.items.items() if size)
        note = f"; {phase.note}" if phase.note else ""
        table.add_row(phase.name, f"{phase.total / unit:.1f}", f"{phase.limit / unit:.1f}", f"{items}{note}")
    return table


def _empty(first: str, *numbers: str) -> Table:
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(box=SIMPLE, collapse_padding=True, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for title in numbers:
        table.add_column(title, justify="right", no_wrap=True)
    return table
