"""The settings of a run's TOML, as a planner reads them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rlcore import (
    BASE,
    START,
    Algorithm,
    BatchConfig,
    Config,
    ConfigError,
    Engine,
    Input,
    Kind,
    Part,
    Registry,
    RunConfig,
    TrainerConfig,
    TrainsOn,
    ValueLossConfig,
    did_you_mean,
)

ROLES = tuple(RunConfig().roles)
"""The models beside the policy."""


@dataclass(frozen=True)
class Fields:
    """Settings by the names that follow `table` in the file at `path`."""

    path: Path
    table: str
    values: Mapping[str, Any]

    def number(self, name: str, default: float = 1) -> float:
        """ConfigError. Where it is `none`, the default."""
        value = self.values.get(name, default)
        return _number(self.path, f"{self.table}.{name}", default if str(value).lower() == "none" else value)

    def size(self, name: str, default: float = 1) -> int:
        """A whole number. ConfigError."""
        return int(self.number(name, default))

    def is_on(self, name: str) -> bool:
        """A switch."""
        return str(self.values.get(name, False)).lower() == "true"

    def text(self, name: str, default: str = "") -> str:
        return str(self.values.get(name, default))

    def with_own(self, own: "Fields") -> "Fields":
        """These, with `own` in their place."""
        return Fields(self.path, self.table, {**self.values, **own.values})


def _number(path: Path, name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"--config {path}: {name}: found {value!r}, expected a number.") from None


@dataclass(frozen=True)
class RunFile:
    """The settings of a run's TOML by their dotted names, and `run`: with those that it does not say.

    `configs`: of the parts that it chooses.
    """

    path: Path
    settings: Mapping[str, Any]
    registry: Registry
    run: RunConfig
    configs: Sequence[type[Config]]

    def but(self, **settings: Any) -> "RunFile":
        """The same with other values of `settings`."""
        of_run = {name: value for name, value in settings.items() if name in self.run.values()}
        return replace(self, settings={**self.settings, **settings}, run=self.run.but(**of_run))

    @property
    def model(self) -> str:
        """ConfigError where it names none."""
        model = self.settings.get("model")
        if not isinstance(model, str):
            raise ConfigError(f"--config {self.path}: model is missing; add --model.")
        return model

    def value(self, name: str) -> Any:
        """A setting of the run: that of the file, else of the recipe, of the preset, or the default."""
        return self._values[name]

    @cached_property
    def _values(self) -> Mapping[str, Any]:
        return self.run.values()

    def whole_number(self, name: str, value: Any) -> int:
        """`value` of the setting `name`. ConfigError."""
        return int(_number(self.path, name, value))

    def fields(self, table: str) -> Fields:
        """Those of a table."""
        prefix = f"{table}."
        values = {
            key.removeprefix(prefix): item for key, item in self.settings.items() if key.startswith(prefix)
        }
        return Fields(self.path, table, values)

    @property
    def trainer(self) -> TrainerConfig:
        """The trainer's own. ConfigError where there is none of the name."""
        entry = None if "trainer" in self.settings else self.registry.default(Kind.TRAINER)
        if entry is None:
            name = str(self.settings.get("trainer"))
            entry = self.registry.find(Kind.TRAINER, name, f"--config {self.path}: trainer")
        config = entry.config()
        assert isinstance(config, TrainerConfig)
        return config

    @property
    def engine(self) -> Engine | None:
        """That of the name, or the one that GPUs have by default. None: there is no such default here."""
        name = self.settings.get("engine")
        if name is None:
            return gpu_engine(self.registry)
        entry = self.registry.find(Kind.ENGINE, str(name), f"--config {self.path}: engine")
        own = {key: value for key, value in self.fields("engine").values.items() if value != "none"}
        return _built(entry, own)

    def role(self, name: str) -> Fields:
        """The trainer's fields of a role; empty: of the policy."""
        table = self.trainer.table
        policy = self.fields(table)
        return policy.with_own(self.fields(f"{name}.{table}")) if name else policy

    def check_trainer(self) -> None:
        """ConfigError for a field that the trainer's library does not have, where that is known."""
        trainer = self.trainer
        tables = (trainer.table, *(f"{role}.{trainer.table}" for role in ROLES))
        known = trainer.field_names()
        for table in tables if known else ():
            for name in self.fields(table).values:
                if name not in known:
                    meant = trainer.synonyms.get(name)
                    hint = f" Did you mean {meant!r}?" if meant else did_you_mean(name, known)
                    raise ConfigError(
                        f"--config {self.path}: {table}.{name} is no field of {trainer.fields_of}.{hint}"
                    )

    def check_adapter(self) -> None:
        """ConfigError where the engine would not take the adapters that the run publishes."""
        for name in self.run.policies:
            if not self.run.has_overlay or self.run.lora.publish != "adapter":
                raise ConfigError(
                    f"--config {self.path}: found policy.{name}, which is an adapter; add lora.rank and "
                    "lora.publish adapter."
                )
        engine = self.engine
        if engine is None or self.run.lora.publish != "adapter":
            return
        if not engine.takes_overlays:
            raise ConfigError(
                f"--config {self.path}: lora.publish: found adapter, but the engine {engine.name!r} takes "
                "whole weights; leave it out."
            )
        for sentence in engine.config.complaints(self.run, self.fields(engine.config.table).values):
            raise ConfigError(sentence)

    @property
    def longest(self) -> int:
        """Tokens of the longest sample."""
        return int(self.value("max_prompt_tokens") + self.value("max_response_tokens"))

    @property
    def recipe(self) -> Algorithm | None:
        """None where the file names none."""
        name = self.settings.get("algo")
        if name is None:
            return None
        record = self.registry.find(Kind.ALGORITHM, str(name), f"--config {self.path}: algo").record
        assert isinstance(record, Algorithm)
        return record

    @property
    def has_critic(self) -> bool:
        return any(issubclass(config, ValueLossConfig) for config in self.configs)

    @property
    def has_reference(self) -> bool:
        """Whether the KL term or a part reads its log-probs, and it is not the policy's own base."""
        if self.run.has_overlay and self.value("reference.model") in (START, BASE):
            return False
        needs = [config.needs for config in self.configs if issubclass(config, BatchConfig)]
        return self.value("kl_coef") > 0 or any(Input.REFERENCE_LOG_PROBS in inputs for inputs in needs)

    @property
    def generates(self) -> bool:
        """Whether the run starts engines of its own."""
        is_given = self.recipe is not None and self.recipe.trains_on is not TrainsOn.ROLLOUTS
        return not (is_given or self.value("engine_url"))


def gpu_engine(registry: Registry) -> Engine | None:
    """The engine that GPUs have by default."""
    every = [_built(entry) for entry in registry.entries(Kind.ENGINE)]
    return next((engine for engine in every if engine.gpu_share is not None), None)


def _built(entry: Any, settings: Mapping[str, Any] | None = None) -> Engine:
    """The engine of a registry's entry, with its own defaults where `settings` say nothing."""
    config = entry.config.model_validate(settings or {})
    engine = Part(name=entry.component.name, factory=entry.component.factory, config=config).build()
    assert isinstance(engine, Engine)
    return engine
