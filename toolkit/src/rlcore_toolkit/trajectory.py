"""For generators: build a sample from an engine's answers, a single one or several turns."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rlcore import (
    Completion,
    GenerationContext,
    GenerationStatus,
    Messages,
    PackedFlags,
    PackedFloats,
    PackedInts,
    Sample,
    Span,
    TokenFloats,
    TokenIds,
    Tools,
)
from rlcore_toolkit.chats import render_prompt, render_suffix


def answered(sample: Sample, completion: Completion) -> Sample:
    """`sample` with the completion as its response."""
    return sample.but(
        response_ids=completion.token_ids,
        loss_mask=PackedFlags.full(len(completion.token_ids), 1),
        log_probs=completion.log_probs,
        text=completion.text,
        spans=completion.spans,
        status=completion.status,
        engine_columns=completion.engine_columns,
    )


class Trajectory:
    """A conversation as tokens: what the policy samples, and what tools or an environment write in between.

    No text is tokenised twice. The response has at most `ctx.sampling.max_tokens` tokens, those of tools
    included.
    """

    def __init__(
        self, ctx: GenerationContext, sample: Sample, used: int = 0, turns: int = 0, policy: str = ""
    ) -> None:
        """`used`: tokens that count towards the limit already, because the generator has added them to the
        prompt. `turns`: answers of the sample's earlier trajectories, where it has several, as of two agents:
        their requests and seeds must differ. `policy`: which one answers (`Request.policy`).
        """
        self._ctx = ctx
        self._sample = sample
        self._limit = ctx.sampling.max_tokens - used
        self._turns = turns
        self._policy = policy

    @property
    def turns(self) -> int:
        """How many times the policy has answered, in earlier trajectories of the sample too."""
        return self._turns

    @property
    def room(self) -> int:
        """Tokens that may still be added."""
        return self._limit - len(self._sample.response_ids)

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and response."""
        return self._sample.prompt_ids + self._sample.response_ids

    @property
    def length(self) -> int:
        """Tokens of the response so far."""
        return len(self._sample.response_ids)

    async def answer(self, most: int | None = None) -> Completion:
        """Ask the engine for the policy's next turn, of at most `most` tokens. There must be room."""
        sample, left = self._sample, self.room if most is None else min(most, self.room)
        assert left > 0, "whoever asks looks at the room"
        rid = f"{sample.rollout_id}-{sample.attempt}.{self._turns}"
        (done,) = await self._ctx.complete(
            self.tokens,
            seed=turn_seed(sample.seed, self._turns),
            rid=rid,
            sampling=replace(self._ctx.sampling, max_tokens=left),
            policy=self._policy,
        )
        self._turns += 1
        self._append(done.token_ids, 1, done.log_probs, done.spans)
        if done.token_ids:
            self._sample = replace(self._sample, engine_columns=done.engine_columns)
        return done

    def observe(self, ids: Sequence[int]) -> bool:
        """Add tokens that the policy did not sample and is not trained on.

        False: there is no room for them.
        """
        if len(ids) > self.room:
            return False
        self._append(PackedInts(ids), 0, PackedFloats.full(len(ids), 0.0), ())
        return True

    def end(self, status: GenerationStatus, text: str, **changes: Any) -> Sample:
        """The sample, with `text` as what a reward reads; `changes` are further fields of it."""
        return replace(self._sample, status=status, text=text, **changes)

    def _append(self, ids: TokenIds, mask: int, log_probs: TokenFloats, spans: Sequence[Span]) -> None:
        sample = self._sample
        self._sample = replace(
            sample,
            response_ids=sample.response_ids + ids,
            loss_mask=sample.loss_mask + PackedFlags.full(len(ids), mask),
            log_probs=sample.log_probs + log_probs,
            spans=_joined(sample, spans),
        )


class ChatTrajectory(Trajectory):
    """The same for a chat, whose template writes the messages between the answers."""

    def __init__(
        self, ctx: GenerationContext, sample: Sample, more: Messages = (), tools: Tools = ()
    ) -> None:
        """`more`: messages behind those of the prompt. They and the `tools` count towards the limit."""
        prompt = sample.prompt
        assert not isinstance(prompt.text, str), "the prompt is a chat"
        self._chat, self._tools = [*prompt.text, *more], tools
        ids = sample.prompt_ids
        if more or tools:
            ids = render_prompt(ctx.tokenizer, self._chat, tools, prompt.chat_template_kwargs)
        super().__init__(ctx, replace(sample, prompt_ids=ids), used=len(ids) - len(sample.prompt_ids))

    def go_on(self, done: Completion, new: Messages) -> bool:
        """Add `new` messages behind the answer `done`. False: there is no room for them."""
        self._chat.append({"role": "assistant", "content": done.text})
        ids = render_suffix(
            self._ctx.tokenizer,
            self._chat,
            new,
            sampled=done.token_ids,
            tools=self._tools,
            options=self._sample.prompt.chat_template_kwargs,
        )
        self._chat += new
        return self.observe(ids)


def turn_seed(seed: int, turn: int) -> int:
    """The seed of one turn's answer.

    Turns need different seeds, or they would repeat each other's random numbers.
    """
    return (seed + 0x9E3779B1 * turn) % 2**31


def _joined(sample: Sample, spans: Sequence[Span]) -> tuple[Span, ...]:
    """The spans of the response. Observed tokens belong to the answer before them, or to the first answer."""
    joined = list(sample.spans)
    for span in spans:
        start = len(sample.response_ids) + span.start if joined else 0
        if not joined or replace(joined[-1], start=span.start) != span:
            joined.append(replace(span, start=start))
    return tuple(joined)
