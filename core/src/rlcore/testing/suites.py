"""Which suite a kind has, and how it is run on an installed part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rlcore.api.errors import PluginError, RlcoreError
from rlcore.api.part import load
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
