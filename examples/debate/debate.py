"""Two agents answer one question, and each is paid for its own answer.

The proposer answers. The critic reads the answer and gives its own. The two answers are two samples of one
rollout. With the generator `debate` both are the same policy. With plain GRPO, samples of one rollout share
the mean of their rewards, so the critic would be paid for what the proposer did. The advantage `per_agent`
compares proposers with proposers and critics with critics. With the generator `two_policies` the critic is a
policy of its own, and GRPO compares the samples of each policy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from torch import Tensor

from rlcore import (
    AdvantageConfig,
    Component,
    GenerationContext,
    GenerationStatus,
    Sample,
    TrainBatch,
    hookimpl,
)
from rlcore_toolkit import Trajectory, group_advantages

PROPOSER, CRITIC = 0, 1
AGENTS = 2
ANSWER_TOKENS = 6
"""Of each agent: both answers and the comma fit into --max-response-tokens."""


async def debate(ctx: GenerationContext, sample: Sample) -> list[Sample]:
    """The proposer's sample and the critic's, of one policy."""
    return await _debate(ctx, sample, critic="")


async def two_policies(ctx: GenerationContext, sample: Sample) -> list[Sample]:
    """The same with the policy `critic` of the run (`[policy.critic]`) as the critic."""
    return await _debate(ctx, sample, critic="critic")


async def _debate(ctx: GenerationContext, sample: Sample, critic: str) -> list[Sample]:
    """The critic's prompt is the question, the proposal and a comma. `critic`: the policy that answers it."""
    proposer = Trajectory(ctx, sample)
    proposal = await proposer.answer(most=ANSWER_TOKENS)
    first = proposer.end(proposal.status, proposal.text, extras={"agent": PROPOSER})
    if proposal.status is GenerationStatus.ABORTED:  # the run makes the group later
        return [first]
    ended = proposal.status is GenerationStatus.COMPLETED
    words = proposal.token_ids[: -1 if ended else None]  # as they were sampled, but for the stop token
    prompt_ids = (*sample.prompt_ids, *words, *ctx.encode(","))
    asked = replace(sample, prompt_ids=prompt_ids)
    second = Trajectory(ctx, asked, len(words) + 1, proposer.turns, policy=critic)
    verdict = await second.answer(most=ANSWER_TOKENS)
    return [first, second.end(verdict.status, verdict.text, extras={"agent": CRITIC})]


class PerAgentConfig(AdvantageConfig):
    """Settings of `per_agent`: none."""

    min_group_size = 2


class PerAgent:
    """GRPO's advantage within the samples of one group and one agent."""

    def __init__(self, config: PerAgentConfig) -> None:
        """There are no settings."""

    def estimate(self, batch: TrainBatch) -> Tensor:
        """Each sample's reward against those of the same agent in its group; float32 [R]."""
        columns = batch.per_sample
        agent_and_group_B = columns["group"] * AGENTS + columns["agent"].long()
        advantage_B = group_advantages(columns["reward"], agent_and_group_B, std=True)
        return advantage_B[batch.segments].float()


@hookimpl
def rlcore_generators() -> Iterable[Component]:
    """Chosen by `--generator debate` and `--generator two_policies`."""
    for name in ("debate", "two_policies"):
        yield Component(name=name, factory=f"{__name__}:{name}", summary="a proposer, then a critic")


@hookimpl
def rlcore_advantages() -> Iterable[Component]:
    """Chosen by `--advantage per_agent`."""
    yield Component(
        name="per_agent",
        factory=f"{__name__}:PerAgent",
        config=PerAgentConfig,
        summary="GRPO within the samples of one agent",
    )
