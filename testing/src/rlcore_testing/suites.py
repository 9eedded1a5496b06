"""Which suite a kind has, and how it is run on an installed part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rlcore.api.errors import PluginError, RlcoreError
from rlcore.api.factory import load
from rlcore.api.records import Kind, ModelFamily
from rlcore_testing.by_pytest import findings_by_pytest, require_pytest
from rlcore_testing.conformance import Conformance, Finding, Outcome, Subject, findings, needs_pytest, why
from rlcore_testing.parts import FACTORY, PartConformance

COMMAND = "command"

SUITES: Mapping[str, str] = {
    Kind.ALGORITHM: "rlcore_testing.algorithms:AlgorithmConformance",
    Kind.ADVANTAGE: "rlcore_testing.estimators:EstimatorConformance",
    Kind.LOSS: "rlcore_testing.losses:LossConformance",
    Kind.VALUE_LOSS: "rlcore_testing.value_losses:ValueLossConformance",
    Kind.CORRECTION: "rlcore_testing.corrections:CorrectionConformance",
    Kind.GENERATOR: "rlcore_testing.generators:GeneratorConformance",
    Kind.REWARD: "rlcore_testing.rewards:RewardConformance",
    Kind.FILTER: "rlcore_testing.filters:FilterConformance",
    Kind.ENGINE: "rlcore_testing.engines:EngineConformance",
    Kind.TRAINER: "rlcore_testing.trainers:TrainerConformance",
    Kind.CLUSTER: "rlcore_testing.clusters:ClusterConformance",
    Kind.SOURCE: "rlcore_testing.sources:SourceConformance",
    Kind.PRODUCER: "rlcore_testing.producers:ProducerConformance",
    Kind.MODEL_HOOK: "rlcore_testing.model_hooks:ModelHookConformance",
    Kind.TRACKER: "rlcore_testing.trackers:TrackerConformance",
    Kind.CALLBACK: "rlcore_testing.callbacks:CallbackConformance",
    COMMAND: "rlcore_testing.commands:CommandConformance",
}
"""Kind → its suite. That of a model bridge is named by the trainer for which it is written."""


def check(kind: str, subject: Subject) -> Iterator[Finding]:
    """Asks what every part must fulfill, then each property of the suite of `kind`.

    Raises `UserError` if that cannot be done here.
    """
    if subject.part is not None:
        about_part = list(findings(PartConformance.of(subject)))
        yield from about_part
        if any(finding.name == FACTORY and finding.outcome is Outcome.FAILS for finding in about_part):
            return  # there is nothing to ask
    base = _suite(kind, subject)
    try:
        suite = base.of(subject)
    except RlcoreError:
        raise
    except Exception as error:
        yield Finding(name="it can be built and asked", outcome=Outcome.FAILS, reason=why(error))
        return
    yield from findings_by_pytest(suite) if needs_pytest(suite) else findings(suite)


def _suite(kind: str, subject: Subject) -> type[Conformance]:
    name = _bridge_suite(subject) if isinstance(subject.record, ModelFamily) else SUITES[kind]
    try:
        suite: type[Conformance] = load(name, kind)
    except PluginError:
        require_pytest(kind)  # a suite that needs it imports it
        raise
    if needs_pytest(suite):
        require_pytest(kind)
    return suite


def _bridge_suite(subject: Subject) -> str:
    """What the trainer of a bridge holds its bridges to: `bridge_suite` of its config."""
    assert subject.registry is not None, "the trainer is asked"
    record = subject.record
    for entry, config in subject.registry.configs(Kind.TRAINER):
        if entry.record.name == record.trainer and (suite := getattr(config, "bridge_suite", "")):
            return str(suite)
    raise PluginError(
        f"model {record.name!r} is a bridge for the trainer {record.trainer!r}, which is not installed or "
        "has no suite for bridges (`bridge_suite` of its config)."
    )
