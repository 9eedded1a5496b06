"""What travels to a worker: factories by name, configs by value. Workers build no plugin manager."""

import inspect
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, cast

from typing_extensions import TypeVar

from rlcore.api.config import Config
from rlcore.api.errors import PluginError, described, faults_of
from rlcore.api.factory import load
from rlcore.api.part_config import RewardConfig

_NAME = "_rlcore_name"
"""Attribute of a built part: the name that the user chose it by."""

C = TypeVar("C", bound=Config, default=Config, covariant=True)


@dataclass(frozen=True, kw_only=True)
class Part(Generic[C]):
    """One selected component: `factory` is `package.module:attribute`, called with its config.

    `adapter`: what makes the factory of a plain function, as in `rlcore.Component`.
    """

    name: str
    factory: str
    config: C = field(default_factory=cast(Any, Config))
    adapter: str = ""

    def load(self) -> Any:
        """The attribute that `factory` names, imported now; with an `adapter`, the factory that it makes."""
        target = load(self.factory, self.name)
        return load(self.adapter, self.name)(target, self.name) if self.adapter else target

    def flat(self, table: str) -> dict[str, Any]:
        """The settings of its config by their dotted names, those of `table`."""
        return {f"{table}.{key}": value for key, value in self.config.model_dump(mode="json").items()}

    def build(self, **known: Any) -> Any:
        """`factory(config, **known)`."""
        return self.load()(self.config, **known)


def built(part: Part, kind: str, method: str = "") -> Any:
    """The object of a part. Its faults are told as its own. PluginError where it has no `method`."""
    whose = f"The {kind} {part.name!r}"
    with faults_of(whose):
        target = part.build()
    if method and not callable(getattr(target, method, None)):
        raise PluginError(f"{whose} is {described(target)} without a method {method!r}, which it needs.")
    keep_name(target, part.name)
    return target


def keep_name(target: object, name: str) -> None:
    """Let `part_name` know the part `target` by `name`."""
    with suppress(AttributeError, TypeError):  # what takes no attribute is named by its class
        setattr(target, _NAME, name)


def kept_name(target: object) -> str | None:
    """The name that `keep_name` kept, if there is one."""
    name = getattr(target, _NAME, None)
    return name if isinstance(name, str) else None


def part_name(target: object) -> str:
    """The name of a `built` part in quotes, as users chose it; of another object, `package.module.Class`."""
    name = kept_name(target)
    if name is not None:
        return repr(name)
    named: Any = target if inspect.isfunction(target) else type(target)
    return f"{named.__module__}.{named.__qualname__}"


@dataclass(frozen=True, kw_only=True)
class RewardPart(Part[RewardConfig]):
    """One of a run's rewards. `weight`: what its scores are multiplied by in the sum; 0 only measures.

    `ranked`: of siblings, the rank counts in place of the score.
    """

    config: RewardConfig = field(default_factory=RewardConfig)
    weight: float = 1.0
    ranked: bool = False

    def load(self) -> Any:
        """The part's factory. PluginError for a function that takes no config, without an `adapter`."""
        factory = super().load()
        is_bare = inspect.isfunction(factory) and not self.adapter
        if is_bare and "config" not in inspect.signature(factory).parameters:
            raise PluginError(
                f"Reward {self.name!r}: {self.factory} is a function without a parameter 'config', so no "
                "factory; the record of such a function names an adapter, which makes one."
            )
        return factory

    def asks_for(self, name: str) -> bool:
        """Whether the factory has a parameter `name`."""
        return name in inspect.signature(self.load()).parameters

    def build(self, **known: Any) -> Any:
        """`factory(config, …)` with those of `known` for which it has a parameter."""
        factory = self.load()
        parameters = inspect.signature(factory).parameters
        return factory(self.config, **{name: value for name, value in known.items() if name in parameters})


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A model as a worker builds it.

    `path`: a local Hugging Face directory (config.json, tokenizer, safetensors). `dtype`: "fp32" or "bf16".
    `fields`: of the trainer's own table, as `Trainer.fields` gave them. `weights`: a folder of the model in a
    checkpoint, which is read in place of the directory's safetensors.
    """

    path: str
    bridge: Part
    dtype: str = "fp32"
    fields: Mapping[str, Any] = field(default_factory=dict)
    weights: str | None = None
