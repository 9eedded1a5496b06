"""The adapter of a run: what its table `[lora]` and the files of `--lora.from` say, held to the model."""

from pathlib import Path

from rlcore import ADAPTER_CONFIG, AdapterSpec, ConfigError, ModelError, RunConfig
from rlcore_toolkit.lora import Modules, adapted_modules, linear_modules
from rlcore_toolkit.peft_files import read_adapter, read_adapter_config


def adapter_of(run: RunConfig, path: Path) -> AdapterSpec:
    """The adapter of `run` for the model in `path`. `UserError` where it does not fit it."""
    lora = run.lora
    spec = AdapterSpec(
        rank=lora.rank,
        alpha=lora.alpha,
        targets=lora.targets,
        dropout=lora.dropout,
        rslora=lora.rslora,
        seed=run.seed,
        publish=lora.publish,
    )
    if lora.source:
        spec = _spec_of(run, Path(lora.source))
        _check_shapes(Path(lora.source), linear_modules(path))
    adapted_modules(path, spec)
    return spec


def _spec_of(run: RunConfig, folder: Path) -> AdapterSpec:
    """That of the directory; the run may say its dropout and no more."""
    if not (folder / ADAPTER_CONFIG).is_file():
        raise ConfigError(f"--lora.from: found {str(folder)!r}, which holds no {ADAPTER_CONFIG} of PEFT.")
    told = read_adapter_config(folder)
    for name in ("rank", "alpha", "targets", "rslora"):
        if not run.is_default(f"lora.{name}"):
            value = run.values()[f"lora.{name}"]
            raise ConfigError(
                f"--lora.{name}: found {value}, but the adapter of --lora.from has its own; leave it out."
            )
    return AdapterSpec(
        rank=told.rank,
        alpha=told.alpha,
        targets=tuple(sorted(read_adapter(folder))),
        dropout=run.lora.dropout,
        rslora=told.rslora,
        seed=run.seed,
        source=str(folder),
        publish=run.lora.publish,
    )


def _check_shapes(folder: Path, modules: Modules) -> None:
    """ModelError where the adapter in `folder` is of another model than that of `modules`."""
    for module, (a, b) in read_adapter(folder).items():
        found = (b.shape[0], a.shape[1])
        if modules.get(module) != found:
            there = f"is {list(modules[module])}" if module in modules else "is not there"
            raise ModelError(
                f"--lora.from {folder}: it is of another model: its {module} is {list(found)}, and that of "
                f"the run's model {there}."
            )
