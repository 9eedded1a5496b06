"""What every recipe must fulfill, as a suite to subclass.

    class TestMyRecipe(AlgorithmConformance):
        algorithm = next(iter(plugin.rlcore_algorithms()))

Its parts are looked for among those of all installed plugins.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Self
from unittest import SkipTest

from rlcore.api.columns import TrainsOn
from rlcore.api.config import Config
from rlcore.api.part_config import BatchConfig, GroupConfig
from rlcore.api.records import Algorithm, Kind
from rlcore.api.run_config import RunConfig
from rlcore.compose.selection import Selection
from rlcore.config import layers
from rlcore.config.layers import Layer
from rlcore.plugins.loader import load
from rlcore.plugins.registry import Registry
from rlcore_cli.select import select
from rlcore_testing.conformance import Conformance, Subject

OF_RESPONSES = (Kind.ADVANTAGE, Kind.VALUE_LOSS, Kind.CORRECTION, Kind.REWARD, Kind.FILTER)
"""Kinds that do nothing where the responses are given."""


class AlgorithmConformance(Conformance):
    """Subclass it as `Test…` and give `algorithm`."""

    algorithm: ClassVar[Algorithm]
    registry: ClassVar[Registry | None] = None
    """The parts that there are; None: those of all installed plugins."""

    @classmethod
    def of(cls, subject: Subject) -> type[Self]:
        return cls.with_values(algorithm=subject.record, registry=subject.registry)

    # --- the properties --------------------------------------------------------------------------------

    def test_it_says_what_it_is(self) -> None:
        """In one line, with the paper that its defaults are from."""
        algorithm = self.algorithm
        assert len(algorithm.summary.splitlines()) == 1, f"summary: {algorithm.summary!r}, expected a line"
        assert algorithm.paper.startswith("https://"), f"paper: {algorithm.paper!r}, expected the URL of one"

    def test_its_parts_are_installed(self) -> None:
        for kind, names in self.algorithm.parts.items():
            for name in [names] if isinstance(names, str) else names:
                known = self._registry.names(Kind(kind))
                assert name in known, f"{kind} {name!r} is offered by no plugin; there is {', '.join(known)}"

    def test_it_names_what_a_run_needs(self) -> None:
        """A loss; an advantage too, where the policy samples what it is trained on."""
        on, parts = self.algorithm.trains_on, self.algorithm.parts
        assert Kind.LOSS in parts, "it names no loss"
        if on is TrainsOn.ROLLOUTS:
            assert Kind.ADVANTAGE in parts, "it names no advantage estimator"
        idle = [] if on is TrainsOn.ROLLOUTS else [kind.value for kind in OF_RESPONSES if parts.get(kind)]
        assert not idle, f"it trains on {on}, where a part of kind {idle[0]} does nothing"

    def test_its_settings_are_valid(self) -> None:
        """Its settings of the run fit, by name and value."""
        layers.build(RunConfig, self._selection().settings())

    def test_its_tables_are_valid(self) -> None:
        """The settings of its parts, by name and value."""
        for _ in self._configs():
            pass

    def test_its_parts_train_on_what_it_trains_on(self) -> None:
        for name, config in self._configs():
            if isinstance(config, BatchConfig):
                on = sorted(config.trains_on)
                assert self.algorithm.trains_on in config.trains_on, (
                    f"{name} trains on {' or '.join(on)}, the recipe on {self.algorithm.trains_on}"
                )

    def test_its_groups_are_large_enough(self) -> None:
        """For parts that compare siblings."""
        if self.algorithm.trains_on is not TrainsOn.ROLLOUTS:
            raise SkipTest("the data give the responses")
        size = layers.build(RunConfig, self._selection().settings()).data.group_size
        for name, config in self._configs():
            if isinstance(config, GroupConfig):
                need = config.needed_group_size()
                assert size >= need, f"{name} needs groups of {need}, the recipe has {size}"

    @property
    def _registry(self) -> Registry:
        return self.registry or load().registry

    def _selection(self) -> Selection:
        flags = Layer(label="", values={"algo": self.algorithm.name})
        return select(self._registry, None, flags)

    def _configs(self) -> Iterator[tuple[str, Config]]:
        """The parts that the recipe names, with the settings that it gives them."""
        selection = self._selection()
        settings: Any = selection.settings()
        for table, config, heading in selection.configs():
            if table.partition(".")[0] in self.algorithm.parts:
                yield heading, layers.build(config, settings, table)
