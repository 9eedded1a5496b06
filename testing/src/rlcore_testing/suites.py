"""Which suite a kind has, and how it is run on an installed part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rlcore.api.errors import PluginError, RlcoreError
from rlcore.api.part import load
from rlcore.api.records import Kind, ModelFamily
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
    Kind.SOURCE: "rlcore_testing.sources:SourceConformance",
    Kind.PRODUCER: "rlcore_testing.producers:ProducerConformance",
    Kind.MODEL_HOOK: "rlcore_testing.model_hooks:ModelHookConformance",
    Kind.TRACKER: "rlcore_testing.trackers:TrackerConformance",
    Kind.CALLBACK: "rlcore_testing.callbacks:CallbackConformance",
    COMMAND: "rlcore_testing.commands:CommandConformance",
}
"""Kind → its suite. That of model bridges is the trainer's, for which they are written."""


def check(kind: str, subject: Subject) -> Iterator[Finding]:
    """Asks what every part must fulfill, then each property of the suite of `kind`.

    Raises `UserError` where that cannot be done here.
    """
    if subject.part is not None:
        about_part = list(findings(PartConformance.of(subject)))
        yield from about_part
        if any(one.name == FACTORY and one.outcome is Outcome.FAILS for one in about_part):
            return  # there is nothing to ask
    if isinstance(subject.record, ModelFamily):
        raise PluginError(
            f"model {subject.record.name!r} is a bridge for the trainer {subject.record.trainer!r}, whose "
            "suite needs models of its family: subclass it in a test of the bridge's package."
        )
    name = SUITES[kind]
    if kind in (Kind.ENGINE, Kind.TRAINER):
        from rlcore_testing.by_pytest import findings_by_pytest, require_pytest

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
