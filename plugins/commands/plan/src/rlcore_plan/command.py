"""`rlcore plan`: which layouts of a model fit on a number of GPUs, and why others do not."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from rlcore import ConfigError, Kind, Part, Registry, TrainerConfig, TrainsOn, UserError
from rlcore_cli.program import Program, RunFile as ProgramRunFile
from rlcore_plan import tables
from rlcore_toolkit import GB, Machines, Plan, Planner, PlanQuestion, RunFile, gpu_engine

POSITIVE = click.IntRange(min=1)
GIGABYTES = click.FloatRange(min=1)
NOTHING_FITS = 1
"""The exit code."""
SIZES = ("tp", "pp", "cp", "ep", "etp")
MACHINES = ("gpus", "gpu_memory", "host_memory", "gpu_bandwidth", "network", "gpus_per_node")
BESIDE_A_FILE = {"config", "model", *MACHINES, "explain", "as_json"}
"""The options that have an effect with --config."""


@click.command()
@click.option("--model", help="Hugging Face directory, config.json, hub id, published size or preset.")
@click.option("--config", type=click.Path(path_type=Path), help="TOML of a run, whose layout to judge.")
@click.option("--trainer", help="Whose layouts.  [default: the trainer of a run]")
@click.option("--algo", help="The recipe of the run.  [default: grpo]")
@click.option("--gpus", type=POSITIVE, help="GPUs of the whole run.")
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
@click.option("--dtype", type=click.Choice(["bf16", "fp32"]), help="Type of the weights.  [default: bf16]")
@click.option("--lora.rank", "lora_rank", type=POSITIVE, help="Train an adapter of this rank.")
@click.option(
    "--lora.targets", "lora_targets", multiple=True, help="Modules of the adapter.  [default: all-linear]"
)
@click.option(
    "--trainer.quantize-base",
    "quantize_base",
    help="Hold the base of an adapter in fewer bits, with fsdp: nf4 or fp8.",
)
@click.option("--max-prompt-tokens", type=POSITIVE, help="Tokens of the longest prompt.")
@click.option("--max-response-tokens", type=POSITIVE, help="Tokens of the longest response.")
@click.option("--tokens-per-rank", type=POSITIVE, help="Tokens of a micro-batch.  [default: 8192]")
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
    """Say how a model trains on your GPUs: which layouts and engines fit, and why others do not.

    It prints the command of the best run. With --config it judges the layout of a run. Of the model it only
    reads config.json. It starts nothing. The exit code is 1 if nothing fits.
    """
    machines = Machines(
        gpus=gpus or 1,
        memory=int(given["gpu_memory"] * GB),
        per_node=given["gpus_per_node"],
        host=int(given["host_memory"] * GB) if given["host_memory"] else None,
        gpu_bandwidth=(given["gpu_bandwidth"] or 0) * GB,
        network=(given["network"] or 0) * GB,
    )
    if config is not None:
        _refuse_beside_a_file(click.get_current_context())
        file = _run_file(config, program)
        name = model or file.model
        answer = _planner(file.registry, file.settings.get("trainer")).judge(file, name, machines, gpus)
    elif model is None or gpus is None:
        missing = "--model" if model is None else "--gpus"
        raise ConfigError(f"{missing} is missing; only --config FILE says it in its place.")
    elif machines.gpu_bandwidth or machines.network:
        unread = "--gpu-bandwidth" if machines.gpu_bandwidth else "--network"
        raise ConfigError(f"{unread} bounds the speed of one layout; add --config FILE, or leave it out.")
    else:
        name, settings = model, _settings(model, given, program)
        registry, command = program.plugins.registry, _command(settings)
        question = PlanQuestion(
            file=_planned(Path("rlcore plan"), program.run_of(settings)),
            model=model,
            machines=machines,
            sizes={flag: given[flag] for flag in SIZES if given[flag] is not None},
            recompute=given["recompute"],
        )
        answer = _planner(registry, given["trainer"]).search(question)
    if given["as_json"]:
        record = _record(name, answer, machines, is_file=config is not None)
        best = next((layout for layout in answer.layouts if not layout.reason), None)
        if config is None:
            record = {**record, "command": f"{command} {best.flags()}" if best else None}
        click.echo(json.dumps(record, indent=1))
    elif config is not None:
        tables.show_judged(name, answer, explain=given["explain"])
    else:
        less = _less(given, question) if all(layout.reason for layout in answer.layouts) else ""
        printed = {"explain": given["explain"], "command": command, "less": less}
        tables.show_layouts(name, machines, answer, given["show"], **printed)
    if all(layout.reason for layout in answer.layouts):
        click.get_current_context().exit(NOTHING_FITS)


def _planner(registry: Registry, name: str | None) -> Planner:
    """The planner of the trainer `name`, or of the default one. ConfigError where it has none."""
    default = None if name else registry.default(Kind.TRAINER)
    entry = default or registry.find(Kind.TRAINER, str(name), "--trainer")
    config = entry.config
    assert issubclass(config, TrainerConfig)
    if not config.planner:
        raise ConfigError(
            f"--trainer: {entry.record.name!r} has no planner, so rlcore cannot say what fits on your GPUs."
        )
    planner: Planner = Part(name=entry.record.name, factory=config.planner).load()()
    return planner


def _run_file(path: Path, program: Program) -> RunFile:
    """UserError, also of a name that no run reads."""
    gpus = gpu_engine(program.plugins.registry)
    return _planned(path, program.run_file(path, {"engine": gpus.name} if gpus else {}))


def _planned(path: Path, file: ProgramRunFile) -> RunFile:
    planned = RunFile(path, file.settings, file.program.plugins.registry, file.run, file.configs)
    found, least = int(planned.value("tokens_per_rank")), _least_tokens(planned)
    if found < least:
        raise ConfigError(
            f"{path}: --tokens-per-rank: found {found}, expected at least {least}, which the longest sample "
            "takes, or pair (--max-prompt-tokens plus --max-response-tokens)."
        )
    return planned


def _settings(model: str, given: Mapping[str, Any], program: Program) -> dict[str, Any]:
    """Those of the run whose layout is searched: what is asked for, and what a GPU has by default."""
    engine = gpu_engine(program.plugins.registry)
    settings = {
        "algo": given["algo"] or "grpo",
        "model": model,
        "trainer": given["trainer"],
        "engine": engine and engine.name,
        "dtype": given["dtype"] or "bf16",
        "max_prompt_tokens": given["max_prompt_tokens"],
        "max_response_tokens": given["max_response_tokens"],
        "tokens_per_rank": given["tokens_per_rank"] or 8192,
        "lora.rank": given["lora_rank"],
        "lora.targets": given["lora_targets"] or None,
        "trainer.quantize_base": given["quantize_base"],
    }
    return {name: value for name, value in settings.items() if value is not None}


def _less(given: Mapping[str, Any], question: PlanQuestion) -> str:
    """What needs less memory on the same GPUs, of what was not asked for and a run accepts."""
    tokens, least = int(question.file.value("tokens_per_rank")), _least_tokens(question.file)
    is_least = given["lora_rank"] and given["trainer"] == "fsdp"
    ways = [] if is_least or not _takes_adapter(question) else ["an adapter (--trainer fsdp --lora.rank 32)"]
    fewer = max(tokens // 2, least)
    ways += [f"smaller micro-batches (--tokens-per-rank {fewer})"] if fewer < tokens else []
    return " and ".join(ways)


def _least_tokens(file: RunFile) -> int:
    """Tokens of the longest sample, or pair of them, which stay in one micro-batch."""
    is_of_pairs = file.recipe is not None and file.recipe.trains_on is TrainsOn.PAIRS
    return file.longest * (2 if is_of_pairs else 1)


def _takes_adapter(question: PlanQuestion) -> bool:
    """Whether the trainer fsdp trains an adapter of the model."""
    file = question.file.but(trainer="fsdp", **{"lora.rank": 32})
    try:
        machines = replace(question.machines, gpus=1, memory=1 << 50)  # where all fits, the search is short
        _planner(file.registry, "fsdp").search(replace(question, file=file, machines=machines))
    except UserError:
        return False
    return True


def _command(settings: Mapping[str, Any]) -> str:
    """What starts the run, without its layout."""
    return " ".join(
        ["rlcore train", *(f"--{name.replace('_', '-')} {value}" for name, value in settings.items())]
    )


def _refuse_beside_a_file(context: click.Context) -> None:
    """The file says the run: only the machines, the model and what is printed are asked for beside it."""
    for option in context.command.params:
        is_given = context.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE
        if is_given and option.name not in BESIDE_A_FILE:
            raise ConfigError(f"--config and {option.opts[0]} exclude each other: the file says the run.")


def _record(model: str, plan: Plan, machines: Machines, *, is_file: bool) -> Mapping[str, Any]:
    """What `--json` prints."""
    layouts = [layout.record() for layout in plan.layouts]
    nearest = plan.nearest.record() if plan.nearest else None
    about = {
        "model": model,
        "parameters": plan.parameters,
        "active_parameters": plan.active,
        "publication_bytes": plan.publication,
        "cache_bytes_per_token": plan.cache,
        "usable_bytes": machines.usable,
        "workload": plan.workload,
    }
    if is_file:
        last = {"nearest": nearest, "apart": plan.apart, "bounds": asdict(plan.bounds)}
        return {**about, **layouts[0], **last}
    return {**about, "layouts": layouts, "nearest": nearest, "smaller": plan.smaller or None}
