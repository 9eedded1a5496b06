"""`rlcore plan`: which layouts of a model fit on a number of GPUs, and why others do not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from rlcore import ConfigError
from rlcore_cli.program import Program
from rlcore_plan import reports, tables
from rlcore_plan.bounds import Bandwidth, Bounds, bounds
from rlcore_plan.memory import Workload
from rlcore_plan.phases import Machines, Run
from rlcore_plan.published import facts_of, read_config, read_facts
from rlcore_plan.run_file import File, layout_of
from rlcore_plan.run_servers import gpus_beside, run_of
from rlcore_plan.search import FLAGS, judge, nearest, on_more_gpus, search
from rlcore_plan.units import GB

POSITIVE = click.IntRange(min=1)
GIGABYTES = click.FloatRange(min=1)
NOTHING_FITS = 1
"""The exit code."""
SIZES = {flag.removeprefix("--"): name for name, flag in FLAGS.items()}


@click.command()
@click.option("--model", help="Hugging Face directory, config.json, hub id, published size or preset.")
@click.option("--config", type=click.Path(path_type=Path), help="TOML of a run, whose layout to judge.")
@click.option("--gpus", type=POSITIVE, help="GPUs of the trainer; with --config, of the whole run.")
@click.option("--gpu-memory", required=True, type=GIGABYTES, help="GB (1e9 bytes) of each GPU.")
@click.option("--host-memory", type=GIGABYTES, help="GB of host memory of each node.  [default: not checked]")
@click.option(
    "--gpu-bandwidth",
    type=POSITIVE,
    help="With --config: GB/s of a GPU's memory, to bound the speed of engines.",
)
@click.option(
    "--network", type=POSITIVE, help="With --config: GB/s of a node's network, to bound a publication."
)
@click.option(
    "--gpus-per-node",
    default=8,
    show_default=True,
    type=POSITIVE,
    help="GPUs of a node; TP stays inside one.",
)
@click.option("--tp", type=POSITIVE, help="Tensor-parallel size.  [default: tries all]")
@click.option("--pp", type=POSITIVE, help="Pipeline-parallel size.  [default: tries all]")
@click.option("--cp", type=POSITIVE, help="Context-parallel size.  [default: 1]")
@click.option("--ep", type=POSITIVE, help="Expert-parallel size.  [default: tries all]")
@click.option("--etp", type=POSITIVE, help="Expert-tensor-parallel size.  [default: 1]")
@click.option(
    "--dtype",
    default="bf16",
    show_default=True,
    type=click.Choice(["bf16", "fp32"]),
    help="Type of the weights.",
)
@click.option(
    "--tokens-per-rank", default=8192, show_default=True, type=POSITIVE, help="Tokens of a micro-batch."
)
@click.option(
    "--micro-batches",
    default=8,
    show_default=True,
    type=POSITIVE,
    help="Micro-batches of an optimizer step.",
)
@click.option(
    "--recompute/--no-recompute",
    default=None,
    help="Compute layers again in the backward pass.  [default: if needed]",
)
@click.option(
    "--show", default=6, show_default=True, type=POSITIVE, help="How many layouts of each kind to print."
)
@click.option("--explain", is_flag=True, help="Say what each number is made of.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def plan(program: Program, /, model: str | None, config: Path | None, gpus: int | None, **given: Any) -> None:
    """Say which layouts of a model fit on your GPUs, and why others do not.

    With --config it judges the layout of a run. Of the model it only reads config.json. It starts nothing.
    The exit code is 1 if nothing fits.
    """
    registry = program.plugins.registry
    machines = Machines(
        gpus=gpus or 1,
        memory=int(given["gpu_memory"] * GB),
        per_node=given["gpus_per_node"],
        host=int(given["host_memory"] * GB) if given["host_memory"] else None,
    )
    if config is not None:
        _refuse_beside_a_file(given)
        file = File.read(config, program)
        name = model or file.model
        _judge(name, read_config(name, file.registry), file, machines, gpus, given)
        return
    if model is None or gpus is None:
        missing = "--model" if model is None else "--gpus"
        raise ConfigError(f"{missing} is missing; only --config FILE says it in its place.")
    work = Workload(
        dtype=given["dtype"], tokens=given["tokens_per_rank"], micro_batches=given["micro_batches"]
    )
    fixed = {name: given[flag] for flag, name in SIZES.items() if given[flag] is not None}
    facts, run = read_facts(model, registry), Run(work=work)
    candidates = search(facts, machines, run, fixed, given["recompute"])
    fits = any(candidate.fits for candidate in candidates)
    more = None if fits else on_more_gpus(facts, machines, run, fixed, given["recompute"])
    if given["as_json"]:
        click.echo(json.dumps(reports.layouts(model, facts, machines, work, candidates, more), indent=1))
    else:
        count, explain = given["show"], given["explain"]
        tables.show_layouts(model, facts, machines, run, candidates, more, count, explain=explain)
    _end(fits)


def _end(fits: bool) -> None:
    """A script may ask for the exit code."""
    if not fits:
        click.get_current_context().exit(NOTHING_FITS)


def _refuse_beside_a_file(given: dict[str, Any]) -> None:
    """The file says these."""
    for flag in (*SIZES, "recompute"):
        if given[flag] is not None:
            raise ConfigError(f"--config and --{flag} exclude each other: the file says the layout.")


def _judge(
    model: str,
    config: Mapping[str, Any],
    file: File,
    machines: Machines,
    gpus: int | None,
    given: dict[str, Any],
) -> None:
    """The layout of the file, and where it does not fit, the nearest one that does."""
    facts = facts_of(config, f"--model {model}", file.registry)
    layout = layout_of(file, facts)
    run = run_of(file, config, facts, layout)
    others = gpus_beside(file, run)
    if gpus is not None and gpus < layout.world + sum(others.values()):
        beside = "".join(f", and {count} for {name}" for name, count in others.items())
        raise ConfigError(
            f"--gpus: found {gpus}, expected at least {layout.world} for the train workers{beside}."
        )
    whole = Machines(
        gpus=layout.world, memory=machines.memory, per_node=machines.per_node, host=machines.host
    )
    candidate = judge(facts, layout, run, whole)
    near = None if candidate.fits else nearest(facts, whole, run, layout)
    bandwidth = Bandwidth(memory=(given["gpu_bandwidth"] or 0) * GB, network=(given["network"] or 0) * GB)
    best = bounds(facts, run, candidate.needs, bandwidth, machines.per_node) if candidate.needs else Bounds()
    if given["as_json"]:
        click.echo(json.dumps(reports.judged(model, facts, whole, candidate, near, best), indent=1))
    else:
        tables.show_judged(model, facts, whole, candidate, near, best, explain=given["explain"])
    _end(candidate.fits)
