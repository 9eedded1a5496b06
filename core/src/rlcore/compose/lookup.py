"""From a name in the settings to the registry's entry of that name."""

import math
from collections.abc import Sequence
from dataclasses import replace

from rlcore.api.errors import ConfigError
from rlcore.api.part_config import DataConfig
from rlcore.api.records import Kind
from rlcore.config.layers import Layer, Setting
from rlcore.plugins.registry import Entry, Registry

DATA, TASK = "data", "task"


def text_of(key: str, setting: Setting) -> str:
    """The value of `key`. Raises `ConfigError` where it is no text."""
    if not isinstance(setting.value, str):
        raise ConfigError(f"{setting.layer.at(key)}: found {setting.value!r}, expected a text.")
    return setting.value


def find_entry(registry: Registry, kind: Kind, key: str, setting: Setting) -> Entry:
    """The entry that the choice `key` names. Raises `UserError`."""
    return registry.find(kind, text_of(key, setting), setting.layer.at(key))


def strongest(stack: Sequence[Layer], *keys: str) -> tuple[str, Setting] | None:
    """The one of `keys` that the strongest layer has, of those that have any.

    ConfigError where it has two.
    """
    for layer in reversed(stack):
        named = [key for key in keys if key in layer.values]
        if len(named) > 1:
            raise ConfigError(
                f"{layer.at(named[0])} and {layer.at(named[1])} exclude each other; leave one out."
            )
        if named:
            return named[0], Setting(value=layer.values[named[0]], layer=layer)
    return None


def is_replaced(layer: Layer, stack: Sequence[Layer], *keys: str) -> bool:
    """Whether `layer` chooses a source by one of `keys`, and a stronger layer of `stack` another one.

    Other data are read by the same source.
    """
    choices = filter(None, (strongest((layer,), *keys), strongest(stack, *keys)))
    return len({(key, key.endswith(DATA) or str(choice.value)) for key, choice in choices}) > 1


def find_source(registry: Registry, stack: Sequence[Layer]) -> Entry | None:
    """The source that the strongest layer chooses, else the default one. Raises `UserError`."""
    choice = strongest(stack, TASK, DATA)
    if choice is None:  # a default that clashes is refused by whoever needs a source
        return None if registry.default_clash(Kind.SOURCE) else registry.default(Kind.SOURCE)
    key, setting = choice
    return find_data(registry, key, setting) if key == DATA else find_task(registry, key, setting)


def find_data(registry: Registry, key: str, setting: Setting) -> Entry:
    """The source behind `--data`. Raises `UserError`, also where it cannot read what the setting names."""
    at, value = setting.layer.at(key), setting.value
    entry = registry.data_source(at)
    paths = [value] if isinstance(value, str) else value
    if not paths or not isinstance(paths, list | tuple) or not all(isinstance(path, str) for path in paths):
        raise ConfigError(f"{at}: found {value!r}, expected a path, or a list of paths.")
    assert issubclass(entry.config, DataConfig), "the registry has checked it"
    if complaint := entry.config.path_complaint(paths):
        raise ConfigError(f"{at}: {complaint}")
    return entry


def find_task(registry: Registry, key: str, setting: Setting, instead: str = "use --data PATH") -> Entry:
    """The task that `key` names. Raises `UserError`; `instead`: what to do with a source that is no task."""
    entry = find_entry(registry, Kind.SOURCE, key, setting)
    if entry.is_data_source:
        raise ConfigError(f"{setting.layer.at(key)}: {entry.record.name!r} is no task; {instead}.")
    return entry


def find_entries(registry: Registry, kind: Kind, setting: Setting | None) -> tuple[Entry, ...]:
    """The entries of a list of names. Raises `UserError`."""
    if setting is None:
        return ()
    at = setting.layer.at(kind.value)
    names = setting.value
    if not (isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)):
        raise ConfigError(f"{at}: found {names!r}, expected a list of names.")
    bare = [bare_name(kind, name) for name in names]
    # Two of one name would share a table of settings.
    if len(set(bare)) != len(bare):
        raise ConfigError(f"{at}: found {', '.join(names)}, expected each {kind} once.")
    return tuple(registry.find(kind, name, at) for name in bare)


def with_reward_list(layer: Layer) -> Layer:
    """`layer` with `reward = "x"` as `reward = ["x"]`: most runs have one reward, so a file may name it
    plainly.
    """
    name = layer.values.get(Kind.REWARD.value)
    values = {**layer.values, Kind.REWARD.value: [name]}
    return replace(layer, values=values) if isinstance(name, str) else layer


def bare_name(kind: Kind, name: str) -> str:
    """`math=0.5` → `math`."""
    return name.partition("=")[0] if kind is Kind.REWARD else name


def reward_weights(setting: Setting | None) -> dict[str, float]:
    """Reward → weight. Raises `ConfigError` for one that is no number."""
    weights: dict[str, float] = {}
    for assignment in () if setting is None else setting.value:
        name, equals, text = assignment.partition("=")
        try:
            weights[name] = float(text) if equals else 1.0
        except ValueError:
            weights[name] = math.nan  # refused below, as infinity is
        if not math.isfinite(weights[name]):
            assert setting is not None
            at = setting.layer.at(Kind.REWARD.value)
            raise ConfigError(
                f"{at}: found {assignment!r}, expected NAME=WEIGHT with a weight that is a number."
            )
    return weights
