"""What travels to a worker: factories by name, configs by value. Workers build no plugin manager."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic

from typing_extensions import TypeVar

from rlcore.api.config import Config
from rlcore.api.errors import PluginError
from rlcore.api.part_config import RewardConfig
from rlcore.api.records import RewardAdapter

C = TypeVar("C", bound=Config, default=Config, covariant=True)


def load(factory: str, name: str) -> Any:
    """The attribute that `factory` ("package.module:attribute") names, imported now.

    PluginError where there is none; `name`: of the part that it belongs to.
    """
    module, _, attribute = factory.partition(":")
    try:
        target = importlib.import_module(module)
        for piece in attribute.split("."):
            target = getattr(target, piece)
    except (ImportError, AttributeError) as error:
        raise PluginError(f"{name!r} cannot be loaded from {factory!r}: {error}.") from error
    return target


def _no_settings() -> Any:
    return Config()


@dataclass(frozen=True, kw_only=True)
class Part(Generic[C]):
    """One selected component: `factory` is `package.module:attribute`, called with its config."""

    name: str
    factory: str
    config: C = field(default_factory=_no_settings)

    def load(self) -> Any:
        """The attribute that `factory` names, imported now."""
        return load(self.factory, self.name)

    def flat(self, table: str) -> dict[str, Any]:
        """The settings of its config by their dotted names, those of `table`."""
        return {f"{table}.{key}": value for key, value in self.config.model_dump(mode="json").items()}

    def build(self, **known: Any) -> Any:
        """`factory(config, **known)`."""
        return self.load()(self.config, **known)


@dataclass(frozen=True, kw_only=True)
class RewardPart(Part[RewardConfig]):
    """One of a run's rewards. `weight`: what its scores are multiplied by in the sum; 0 only measures.

    `ranked`: of siblings, the rank counts in place of the score. `adapters`: those of all plugins, for
    a factory that is a plain function.
    """

    config: RewardConfig = field(default_factory=RewardConfig)
    weight: float = 1.0
    ranked: bool = False
    adapters: tuple[RewardAdapter, ...] = ()

    def load(self) -> Any:
        """The factory, imported now. That of a plain function is what an adapter makes of it.

        PluginError, also for a function of which no adapter makes a reward.
        """
        found = super().load()
        adapter = None if inspect.isclass(found) else adapter_of(found, self.adapters)
        if adapter is not None:
            return load(adapter.factory_of, self.name)(found, self.name)
        if inspect.isfunction(found) and "config" not in inspect.signature(found).parameters:
            raise PluginError(f"No plugin makes a reward of a function with the parameters of {self.name!r}.")
        return found

    def asks_for(self, name: str) -> bool:
        """Whether the factory has a parameter `name`."""
        return name in inspect.signature(self.load()).parameters

    def build(self, **known: Any) -> Any:
        """`factory(config, …)` with those of `known` for which it has a parameter."""
        return super().build(**{name: value for name, value in known.items() if self.asks_for(name)})


def adapter_of(function: Callable[..., Any], adapters: Iterable[RewardAdapter]) -> RewardAdapter | None:
    """The adapter that makes a reward of `function`; None: none does.

    PluginError where two know as many of its parameters.
    """
    parameters = inspect.signature(function).parameters
    named = {name for name, one in parameters.items() if one.kind is not one.VAR_POSITIONAL}
    # By how much of the function they know: which plugin was installed first must not decide.
    known = {one: max((len(n) for n in one.parameters if n <= named), default=0) for one in adapters}
    most = max(known.values(), default=0)
    if not most or "config" in named:
        return None
    first, *others = [one for one, count in known.items() if count == most]
    if others:
        both = f"{first.factory_of} and {others[0].factory_of}"
        raise PluginError(f"By its parameters a function is for {both}; leave one out by -p no:PLUGIN.")
    return first


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
