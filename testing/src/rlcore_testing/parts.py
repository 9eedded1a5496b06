"""What every part must fulfill, whatever its kind: its record and its config, before it is built.

class TestMyPart(PartConformance):
    part = Part(name="mine", factory="acme.reward:Mine", config=MyConfig(target=5))
    record = next(iter(plugin.rlcore_rewards()))
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable
from itertools import chain
from typing import Any, ClassVar, Self
from unittest import SkipTest

from rlcore.api.config import Config, fields_of
from rlcore.api.factory import load
from rlcore.api.part import Part
from rlcore.api.part_config import EngineConfig, PartConfig, TrainerConfig
from rlcore.api.records import Component
from rlcore.api.run_config import RunConfig
from rlcore.plugins.factories import check_factory
from rlcore_testing.conformance import Conformance, Subject

FACTORY = "its factory is where its record says"
ROLES = ("critic", "reference", "teacher")
"""The models that a run may have beside its policy."""


def part_of(component: Component) -> Part:
    """The part of a record, with the defaults of its settings."""
    config: Any = component.config or Config
    config = load(config, component.name) if isinstance(config, str) else config
    return Part(name=component.name, factory=component.factory, config=config())


class PartConformance(Conformance):
    """Subclass it as `Test…` and give `part` and `record`."""

    record: ClassVar[Component]

    @classmethod
    def of(cls, subject: Subject) -> type[Self]:
        return cls.with_values(part=subject.part, record=subject.record)

    # --- the properties --------------------------------------------------------------------------------

    def test_its_factory_is_where_its_record_says(self) -> None:
        check_factory(self.part.factory, self.part.name)
        self.part.load()

    def test_it_says_what_it_is(self) -> None:
        """In a line, for `rlcore plugins`."""
        summary = self.record.summary
        assert len(summary.splitlines()) == 1, f"summary: {summary!r}, expected a line"

    def test_each_setting_has_help(self) -> None:
        """`--help` shows it."""
        lacking = [name for name, field in fields_of(type(self.part.config)).items() if not field.description]
        assert not lacking, f"the setting {lacking[0]!r} has no description"

    def test_its_config_can_be_sent_to_a_worker(self) -> None:
        """To a worker by pickle, and into run.toml and back."""
        config = self.part.config
        assert pickle.loads(pickle.dumps(config)) == config, "pickled and read again, it is another"
        written = json.dumps(config.model_dump(mode="json"))
        read = type(config).model_validate_json(written)
        assert read == config, f"written as {written} and read again, it is another"

    def test_its_config_does_not_change(self) -> None:
        """It is shared by all who read it."""
        config: Any = self.part.config
        settings = type(config).model_config
        assert settings.get("frozen"), "its model_config is not frozen"
        assert settings.get("extra") == "forbid", "it takes settings that it does not have"

    def test_its_complaints_are_sentences(self) -> None:
        """Complaints about any run: those that do not fit it are refused by them."""
        for run in (RunConfig(), RunConfig.of(max_staleness=2, group_size=1)):
            for said in self._complaints(run):
                assert isinstance(said, str), f"it gave {said!r}"
                assert said.endswith("."), f"{said!r} is no sentence"

    def _complaints(self, run: RunConfig) -> Iterable[str]:
        config = self.part.config
        if isinstance(config, PartConfig):
            return config.complaints(self.part.name, run, ())
        if isinstance(config, EngineConfig):
            return config.complaints(run, {})
        if isinstance(config, TrainerConfig):
            return chain(*(config.complaints(run, {}, roles) for roles in ((), ROLES)))
        raise SkipTest("its config has none")
