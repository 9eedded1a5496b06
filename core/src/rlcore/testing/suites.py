"""Which suite a kind has, and how it is run on an installed part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rlcore.api.errors import PluginError, RlcoreError
from rlcore.api.part import load
from rlcore.api.part_config import TrainerConfig
from rlcore.api.records import Kind, ModelFamily
from rlcore.testing.conformance import Conformance, Finding, Outcome, Subject, findings, needs_pytest, why
from rlcore.testing.parts import FACTORY, PartConformance

COMMAND = "command"

SUITES: Mapping[str, str] = {
    Kind.ALGORITHM: "rlcore.testing.algorithms:AlgorithmConformance",
    Kind.ADVANTAGE: "rlcore.testing.estimators:EstimatorConformance",
    Kind.LOSS: "rlcore.testing.losses:LossConformance",
    Kind.VALUE_LOSS: "rlcore.testing.value_losses:ValueLossConformance",
    Kind.CORRECTION: "rlcore.testing.corrections:CorrectionConformance",
    Kind.GENERATOR: "rlcore.testing.generators:GeneratorConformance",
    Kind.REWARD: "rlcore.testing.rewards:RewardConformance",
    Kind.FILTER: "rlcore.testing.filters:FilterConformance",
    Kind.ENGINE: "rlcore.testing.engines:EngineConformance",
    Kind.TRAINER: "rlcore.testing.trainers:TrainerConformance",
    Kind.SOURCE: "rlcore.testing.sources:SourceConformance",
    Kind.PRODUCER: "rlcore.testing.producers:ProducerConformance",
    Kind.MODEL_HOOK: "rlcore.testing.model_hooks:ModelHookConformance",
    Kind.TRACKER: "rlcore.testing.trackers:TrackerConformance",
    Kind.CALLBACK: "rlcore.testing.callbacks:CallbackConformance",
    COMMAND: "rlcore.testing.commands:CommandConformance",
}
"""Kind → its suite. A model bridge's is its trainer's (`rlcore.TrainerConfig.bridge_suite`)."""


def check(kind: str, subject: Subject) -> Iterator[Finding]:
    """Asks what every part must fulfill, then each property of the suite of `kind`.

    Raises `UserError` where that cannot be done here.
    """
    if subject.part is not None:
        about_part = list(findings(PartConformance.of(subject)))
        yield from about_part
        if any(one.name == FACTORY and one.outcome is Outcome.FAILS for one in about_part):
            return  # there is nothing to ask
    name = _bridge_suite(subject) if kind == Kind.MODEL else SUITES[kind]
    if kind in (Kind.ENGINE, Kind.TRAINER, Kind.MODEL):
        from rlcore.testing.by_pytest import findings_by_pytest, require_pytest

        require_pytest(kind)
        yield from findings_by_pytest(name, subject)
        return
    try:
        suite: type[Conformance] = load(name, kind).of(subject)
    except RlcoreError:
        raise
    except Exception as error:
        yield Finding(name="it can be built and asked", outcome=Outcome.FAILS, reason=why(error))
        return
    assert not needs_pytest(suite), "the other suites are plain"
    yield from findings(suite)


def _bridge_suite(subject: Subject) -> str:
    """That of the trainer that the bridge is written for."""
    family, registry = subject.record, subject.registry
    assert isinstance(family, ModelFamily)
    assert registry is not None, "a bridge is checked among the trainers that there are"
    entry = registry.find(Kind.TRAINER, family.trainer, f"model {family.name!r}")
    suite = entry.config.bridge_suite if issubclass(entry.config, TrainerConfig) else ""
    if not suite:
        raise PluginError(f"trainer {family.trainer!r} has no suite for the bridges that are written for it.")
    return suite
