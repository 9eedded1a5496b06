"""An engine that does not sample with the adapter is found at the first publication."""

import asyncio
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from rlcore import LogProbGapError
from rlcore.engines.probe import Probe

IDS = tuple(range(1, 13))


class Model:
    """Two linear layers over one-hot tokens, of which each has an adapter of rank 2."""

    url = "http://engine"

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.weights = [torch.randn(16, 16, generator=generator) for _ in range(2)]
        self.a = [torch.randn(2, 16, generator=generator) for _ in range(2)]
        self.b = [torch.zeros(16, 2) for _ in range(2)]

    def train(self) -> None:
        """A step of the optimizer: new Bs, which share no memory with the old ones."""
        self.b = [b + 1e-3 * torch.sign(torch.sin(torch.arange(32.0) + b.sum())).view(16, 2) for b in self.b]

    def log_probs(self, b: Sequence[Tensor]) -> list[float]:
        merged = [w + after @ before for w, before, after in zip(self.weights, self.a, b, strict=True)]
        hidden = torch.tanh(torch.eye(16)[list(IDS)] @ merged[0].t())
        scores = (hidden @ merged[1].t()).log_softmax(-1)
        return scores[torch.arange(len(IDS) - 1), list(IDS[1:])].tolist()


class Engine(Model):
    """It samples with what `take` leaves of the adapter."""

    def __init__(self, model: Model, fault: str) -> None:
        self.model, self.fault = model, fault
        self.adapter = model.b
        self.others: dict[str, list[Tensor]] = {}

    def take(self) -> None:
        nothing = [torch.zeros_like(b) for b in self.model.b]
        new = {
            "": self.model.b,
            "ignores": nothing,
            "half": [self.model.b[0], nothing[1]],
            "keeps": self.adapter if self.model.b[0].any() else self.model.b,
        }
        self.adapter = new[self.fault]

    async def score(self, token_ids: Sequence[int], policy: str) -> list[float]:
        assert tuple(token_ids) == IDS
        return self.model.log_probs(self.others.get(policy, self.adapter))


@pytest.mark.parametrize(
    ("fault", "trained", "what"),
    [
        ("", 3, ""),
        ("ignores", 1, "from the model without the adapter"),
        ("half", 1, "does not apply the adapter as the trainer does"),
        ("keeps", 1, "from the model without the adapter"),
    ],
)
def test_each_publication_is_proven(fault: str, trained: int, what: str) -> None:
    model = Model()
    engine, probe = Engine(model, fault), Probe(token_ids=IDS, noise=1e-5, bound=1e-4)
    zero = [torch.zeros_like(b) for b in model.b]
    for step in range(trained + 1):
        engine.take()
        probe.expect(model.log_probs(model.b), model.log_probs(zero))
        if what and step == trained:
            with pytest.raises(LogProbGapError, match=what):
                asyncio.run(probe.check(engine))  # type: ignore[arg-type]  # it answers as a client does
            return
        asyncio.run(probe.check(engine))  # type: ignore[arg-type]  # as above
        assert (probe.take_metrics()["engine/adapter_effect"] > 1e-4) == (step > 0)
        model.train()


def test_an_engine_that_keeps_an_older_adapter_is_told_from_one_without() -> None:
    model = Model()
    model.train()
    probe, zero = Probe(token_ids=IDS, noise=1e-5, bound=1e-4), [torch.zeros_like(b) for b in model.b]
    engine = Engine(model, "keeps")
    probe.expect(model.log_probs(model.b), model.log_probs(zero))
    asyncio.run(probe.check(engine))  # type: ignore[arg-type]  # as above
    model.train()
    probe.expect(model.log_probs(model.b), model.log_probs(zero))
    with pytest.raises(LogProbGapError, match="with the adapter of the publication before"):
        asyncio.run(probe.check(engine))  # type: ignore[arg-type]  # as above


def test_an_engine_that_takes_one_policy_for_another() -> None:
    own, other = Model(), Model()
    own.train()
    other.b = [-b for b in own.b]
    engine = Engine(own, "")
    engine.take()
    probe = Probe(token_ids=IDS, noise=1e-5, bound=1e-4, policy="other")
    zero = [torch.zeros_like(b) for b in own.b]
    for served, message in ((other.b, ""), (own.b, "samples with the adapter of the run's own policy")):
        engine.others = {"other": served}
        probe.expect(own.log_probs(other.b), own.log_probs(zero), {"": own.log_probs(own.b)})
        if message:
            with pytest.raises(LogProbGapError, match=f"{message} for the policy 'other'"):
                asyncio.run(probe.check(engine))  # type: ignore[arg-type]  # it answers as a client does
        else:
            asyncio.run(probe.check(engine))  # type: ignore[arg-type]  # as above
    assert probe.take_metrics().keys() == {"policy.other/adapter_gap", "policy.other/adapter_effect"}


def test_an_adapter_that_changes_nothing_yet_shows_the_rounding() -> None:
    probe = Probe(token_ids=[1, 2, 3], noise=1e-5, bound=1e-4)

    def check(engine: float, own: float) -> None:
        """All tokens of the base have log-prob -1."""

        class Client:
            url = "http://engine"

            async def score(self, token_ids: Sequence[int], policy: str) -> list[float]:
                return [engine] * 2

        probe.expect([own] * 2, [-1.0] * 2)
        asyncio.run(probe.check(Client()))  # type: ignore[arg-type]  # all that it asks of a client

    with pytest.raises(LogProbGapError):
        check(engine=-1 - 2e-4, own=-1.0)
    with pytest.raises(LogProbGapError):
        check(engine=-1 - 3e-5, own=-1 - 1e-6)
    check(engine=-1 - 3e-5, own=-1.0)
    check(engine=-1 - 5e-5, own=-1 - 1e-6)
    with pytest.raises(LogProbGapError):
        check(engine=-1 - 9e-5, own=-1 - 1e-6)
