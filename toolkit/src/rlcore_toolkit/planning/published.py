"""What `--model` of a plan stands for: a preset, a published size, a directory or a config.json."""

from collections.abc import Mapping
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any

from rlcore import (
    ModelError,
    ModelFacts,
    ModelFamily,
    Part,
    Registry,
    adopted,
    claimant,
    did_you_mean,
    families,
    hub_config,
    published_sizes,
    read_config as read_config_file,
)


def read_config(model: str, registry: Registry) -> Mapping[str, Any]:
    """The config of a preset, a published size, a Hugging Face directory, a config.json or a hub id.

    That of a directory or a hub id is the one that its family would train, as `ModelFamily.adopt` makes it.
    ModelError.
    """
    path, presets = Path(model), _presets(registry)
    if model in presets:
        return _config_of(presets[model])
    if path.is_dir():
        path = path / "config.json"
    elif not path.is_file() and model.count("/") == 1 and not model.startswith((".", "/", "~")):
        path = Path(hub_config(model, registry, "--model"))
    elif not path.is_file():
        known = published_sizes(registry)
        if model not in known:
            raise ModelError(
                f"--model: found {model!r}, expected a directory, a config.json, a hub id or one of "
                f"{', '.join([*presets, *known])}.{did_you_mean(model, [*presets, *known])}"
            )
        path = known[model]
    config = read_config_file(path, f"--model {model}")
    if path.name != "config.json":  # that of a published size
        return config
    with TemporaryDirectory(prefix="rlcore-plan-") as folder:  # a plan needs no copy of the rest
        copyfile(path, Path(folder) / path.name)
        copy = adopted(folder, families(registry), f"--model {model}", Path(folder))
        return read_config_file(copy, f"--model {model}")


def read_facts(model: str, registry: Registry) -> ModelFacts:
    """The sizes of the same model. ModelError; PluginError where the family's plugin cannot be loaded."""
    return facts_of(read_config(model, registry), f"--model {model}", registry)


def facts_of(config: Mapping[str, Any], at: str, registry: Registry) -> ModelFacts:
    """The sizes in a config; `at`: where it comes from. ModelError and PluginError as `read_facts`."""
    family = claimant(config, registry, at).record
    assert isinstance(family, ModelFamily)
    if family.facts is None:
        plannable = ", ".join(other.name for other in families(registry) if other.facts)
        if "*" in family.architectures:  # every other one, of a trainer that needs no bridge
            found = f"its architecture has no bridge, unlike {plannable}; {family.trainer!r} needs none"
        else:
            found = f"cannot plan for {family.name!r}, expected one of {plannable}"
        raise ModelError(f"{at}: {found}.")
    read = Part(name=family.name, factory=family.facts).load()
    try:
        facts: ModelFacts = read(config)
    except KeyError as error:
        raise ModelError(f"{at}: {error} is missing.") from error
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise ModelError(f"{at}: is no config of a model ({error}).") from error
    return facts


def _presets(registry: Registry) -> dict[str, ModelFamily]:
    """The families that have one, by their names."""
    return {family.name: family for family in families(registry) if family.preset}


def _config_of(family: ModelFamily) -> Mapping[str, Any]:
    """A preset tells its config, or is known by what it writes."""
    if family.preset_config:
        told: Mapping[str, Any] = Part(name=family.name, factory=family.preset_config).load()
        return told
    with TemporaryDirectory(prefix="rlcore-plan-") as folder:
        Part(name=family.name, factory=str(family.preset)).load()(folder, 0)
        return read_config_file(folder, str(family.preset))
