"""`rlcore plan`: which layouts of a model fit on a number of GPUs, and why others do not."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from rlcore import ModelFacts
from rlcore_cli.program import Program
from rlcore_plan.memory import Workload, of_stage
from rlcore_plan.published import read_facts
from rlcore_plan.search import GB, Candidate, Machines, cache_bytes, publication_bytes, search
from rlcore_plan.weights import active_parameters, parameters

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

POSITIVE = click.IntRange(min=1)
CACHE_TOKENS = 1000
PARTS = ("weights", "grads", "optim.", "activ.")
SIZES = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}


@click.command()
@click.option("--model", required=True, help="Preset, Hugging Face directory, config.json or hub id.")
@click.option("--gpus", required=True, type=POSITIVE, help="GPUs of the trainer.")
@click.option("--gpu-memory", required=True, type=click.FloatRange(min=1), help="GB (1e9 bytes) of each.")
@click.option("--gpus-per-node", default=8, show_default=True, type=POSITIVE, help="TP stays inside a node.")
@click.option("--tp", type=POSITIVE, help="Tensor-parallel size; without it, all are tried.")
@click.option("--pp", type=POSITIVE, help="Pipeline-parallel size; without it, all are tried.")
@click.option("--cp", type=POSITIVE, help="Context-parallel size; without it, 1.")
@click.option("--ep", type=POSITIVE, help="Expert-parallel size; without it, all are tried.")
@click.option("--dtype", default="bf16", show_default=True, type=click.Choice(["bf16", "fp32"]))
@click.option("--tokens-per-rank", default=8192, show_default=True, type=POSITIVE, help="Of a micro-batch.")
@click.option("--micro-batches", default=8, show_default=True, type=POSITIVE, help="Of an optimizer step.")
@click.option("--recompute/--no-recompute", default=None, help="Keep only the inputs of layers.  [if needed]")
@click.option("--show", default=6, show_default=True, type=POSITIVE, help="Layouts of each kind to show.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def plan(
    program: Program, /, model: str, gpus: int, gpu_memory: float, as_json: bool, show: int, **given: Any
) -> None:
    """Say which layouts of a model fit, from its config.json alone. Starts nothing and needs no GPU."""
    facts = read_facts(model, program.plugins.registry)
    machines = Machines(gpus=gpus, memory=int(gpu_memory * GB), per_node=given["gpus_per_node"])
    work = Workload(
        dtype=given["dtype"], tokens=given["tokens_per_rank"], micro_batches=given["micro_batches"]
    )
    fixed = {name: given[flag] for flag, name in SIZES.items() if given[flag] is not None}
    found = search(facts, machines, work, fixed, given["recompute"])
    if as_json:
        click.echo(json.dumps(_report(model, facts, machines, work, found), indent=1))
        return
    from rich.console import Console

    console = Console()
    _summary(console, model, facts, work)
    fitting, others = _split(found)
    if fitting:
        best, count = fitting[0], len(fitting)
        console.print(f"[bold]{count} layouts fit[/] into {machines.usable / GB:.1f} GB, the best first:")
        console.print(_table(fitting[:show]))
        console.print("The best, stage by stage:")
        console.print(_stages(facts, best, work))
        console.print(f"rlcore train … {_flags(best)}", highlight=False, soft_wrap=True)
    else:
        console.print(f"[bold]No layout fits[/] into {machines.usable / GB:.1f} GB of each GPU.")
    if others:
        console.print(f"{len(others)} do not, among them:")
        console.print(_refused(others[:show]))
    if any(one.layout.recompute for one in found):
        console.print("* with every layer computed again in the backward pass")


def _split(found: list[Candidate]) -> tuple[list[Candidate], list[Candidate]]:
    return [one for one in found if one.fits], [one for one in found if not one.fits]


def _summary(console: Console, model: str, facts: ModelFacts, work: Workload) -> None:
    active = f", {active_parameters(facts) / 1e9:.1f} B of them active" if facts.experts else ""
    cache = cache_bytes(facts, work.dtype) * CACHE_TOKENS / GB
    console.print(f"[bold]{model}[/]: {parameters(facts) / 1e9:.2f} B parameters{active}, {work.dtype}.")
    console.print(
        f"A publication carries {publication_bytes(facts, work) / GB:.1f} GB; an engine's KV cache takes "
        f"{cache:.3f} GB for {CACHE_TOKENS} tokens.",
        highlight=False,
    )


def _table(candidates: list[Candidate]) -> Table:
    table = _empty("layout", *PARTS, "total GB")
    for candidate in candidates:
        memory = candidate.memory
        assert memory is not None, "what fits has been counted"
        parts = (memory.weights, memory.gradients, memory.optimizer, memory.activations + memory.workspace)
        cells = [f"{part / GB:.1f}" for part in (*parts, memory.total)]
        table.add_row(candidate.layout.name + (" *" if candidate.layout.recompute else ""), *cells)
    return table


def _refused(candidates: list[Candidate]) -> Table:
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(box=SIMPLE)
    table.add_column("layout", no_wrap=True)
    table.add_column("why not")
    for candidate in candidates:
        table.add_row(candidate.layout.name + (" *" if candidate.layout.recompute else ""), candidate.reason)
    return table


def _stages(facts: ModelFacts, best: Candidate, work: Workload) -> Table:
    """Every pipeline stage of the best layout, the same ones once."""
    layout, last = best.layout, best.layout.pipeline - 1
    table = _empty("stage", *PARTS, "work", "total GB")
    for number in sorted({0, min(1, last), last}):
        memory = of_stage(facts, layout, work, number)
        values = [value for name, value in asdict(memory).items() if name != "stage"]
        table.add_row(f"{number} of {last}", *(f"{value / GB:.2f}" for value in (*values, memory.total)))
    return table


def _empty(first: str, *numbers: str) -> Table:
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(box=SIMPLE)
    table.add_column(first, no_wrap=True)
    for title in numbers:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _flags(best: Candidate) -> str:
    """How `rlcore train` is told."""
    layout = best.layout
    sizes = {
        "tensor-model-parallel-size": layout.tensor,
        "pipeline-model-parallel-size": layout.pipeline,
        "context-parallel-size": layout.context,
        "expert-model-parallel-size": layout.expert,
    }
    flags = [f"--ranks {layout.world}"]
    flags += [f"--megatron.{name} {size}" for name, size in sizes.items() if size > 1]
    flags += ["--megatron.sequence-parallel"] if layout.sequence else []
    if not layout.recompute:  # a GPU's default
        flags += ["--megatron.recompute-granularity none"]
    return " ".join(flags)


def _report(
    model: str, facts: ModelFacts, machines: Machines, work: Workload, found: list[Candidate]
) -> dict[str, Any]:
    layouts = []
    for one in found:
        memory = {**asdict(one.memory), "total": one.memory.total} if one.memory else None
        layouts.append(
            {"layout": asdict(one.layout), "fits": one.fits, "reason": one.reason or None, "memory": memory}
        )
    return {
        "model": model,
        "parameters": parameters(facts),
        "active_parameters": active_parameters(facts),
        "publication_bytes": publication_bytes(facts, work),
        "cache_bytes_per_token": cache_bytes(facts, work.dtype),
        "usable_bytes": machines.usable,
        "workload": asdict(work),
        "layouts": layouts,
    }
