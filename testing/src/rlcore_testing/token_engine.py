"""An engine in this process that answers by a script, a tokenizer of bytes, and a reward: for generators."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlcore.api.generation import Completion, Request
from rlcore.api.types import Json, Prompt, RewardStatus, Sample, Sampling, Score, Span
from rlcore.rollout.context import EngineContext
from rlcore_testing.samples import sample_of

START, END = "<|im_start|>", "<|im_end|>"
CALLS = """# Tools
For each call answer <tool_call>{"name": <name>, "arguments": <object>}</tool_call>. They are:
"""


class ByteTokenizer:
    """A token a byte, and two special ones; chats as those of Qwen, tool calls too (`hermes`)."""

    chat_template = f"{CALLS} … ChatML, in `apply_chat_template`"
    eos_token: str | None = END
    eos_token_id: int | None = 257

    def __len__(self) -> int:
        return 258

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Ids of `text`; the special tokens are known by their text."""
        ids: list[int] = []
        for piece in re.split(f"({re.escape(START)}|{re.escape(END)})", text):
            ids += {START: [256], END: [257]}.get(piece, piece.encode())
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Text of ids; what is no UTF-8 is replaced."""
        special = {} if skip_special_tokens else {256: START.encode(), 257: END.encode()}
        pieces = (
            special.get(token_id, b"") if token_id > 255 else bytes([token_id]) for token_id in token_ids
        )
        return b"".join(pieces).decode(errors="replace")

    def apply_chat_template(
        self, conversation: list[Mapping[str, Json]], *, add_generation_prompt: bool, **options: Any
    ) -> Any:
        """ChatML; the tools, if there are any, stand before everything."""
        tools = "".join(f"{tool}\n" for tool in options.get("tools", ()))
        text = f"{START}system\n{CALLS}{tools}{END}\n" if tools else ""
        for message in conversation:
            text += f"{START}{message['role']}\n{message['content']}{END}\n"
        if add_generation_prompt:
            text += f"{START}assistant\n"
        return self.encode(text, add_special_tokens=False) if options["tokenize"] else text


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """One token that the engine sampled."""

    token: int
    log_prob: float
    version: int


Script = Callable[[str, int], str]
"""(the prompt's text, special tokens included; the seed) → the answer, without its end token."""


class TokenEngine:
    """The core's `Client`: answers token by token, so that it can be interrupted, and remembers every token.

    `version`: of its weights, which may change at any time. `drawn`: tokens so far → what was sampled next.
    `aborting`: every answer ends after its first token, as if by somebody else. `endless`: no end token.
    `versions_per_token`: publications for each token that it samples.
    """

    def __init__(
        self, script: Script, *, aborting: bool = False, endless: bool = False, versions_per_token: int = 0
    ) -> None:
        self.version = 0
        self.requests = 0
        self.drawn: dict[tuple[int, ...], set[Drawn]] = {}
        self.tokenizer = ByteTokenizer()
        self._script, self._aborting, self._endless = script, aborting, endless
        self._versions_per_token = versions_per_token
        self._interrupts = 0
        self._plans: dict[tuple[tuple[int, ...], int], tuple[int, ...]] = {}

    async def generate(self, request: Request) -> list[Completion]:
        """The answers, with the seeds from `request.seed` on."""
        self.requests += 1
        prompt, sampling = tuple(request.input_ids), request.sampling
        answers = (self._answer(prompt, sampling, request.seed + index) for index in range(request.n))
        return list(await asyncio.gather(*answers))

    async def abort(self) -> None:
        """What is under way ends with what it has."""
        self._interrupts += 1

    async def _answer(self, prompt: tuple[int, ...], sampling: Sampling, seed: int) -> Completion:
        ids: list[int] = []
        log_probs: list[float] = []
        spans: list[Span] = []
        reason, begin = "length", self._interrupts
        for token in self._rest(prompt, seed):
            if len(ids) == sampling.max_tokens:
                break
            if self._interrupts > begin or (self._aborting and ids):
                reason = "abort"
                break
            if not spans or spans[-1].version != self.version:
                spans.append(Span(start=len(ids), version=self.version))
            before = prompt + tuple(ids)
            log_prob = -(1 + (31 * token + len(before)) % 97) / 100
            self.drawn.setdefault(before, set()).add(
                Drawn(token=token, log_prob=log_prob, version=self.version)
            )
            ids.append(token)
            log_probs.append(log_prob)
            self.version += self._versions_per_token
            await asyncio.sleep(0)
            if token == self.tokenizer.eos_token_id:
                reason = "stop"
        return Completion(
            token_ids=tuple(ids),
            log_probs=tuple(log_probs),
            text=self.tokenizer.decode(ids, skip_special_tokens=True),
            finish_reason=reason,
            spans=tuple(spans) or (Span(start=0, version=self.version),),
            prompt_tokens=len(prompt),
        )

    def _rest(self, prompt: tuple[int, ...], seed: int) -> tuple[int, ...]:
        """What the script says, or what is left of it where `prompt` ends with the begin of an answer."""
        for (origin, of), plan in self._plans.items():
            done = prompt[len(origin) :]
            if of == seed and prompt[: len(origin)] == origin and done and plan[: len(done)] == done:
                return plan[len(done) :]
        said = self._script(self.tokenizer.decode(prompt, skip_special_tokens=False), seed)
        plan = tuple(said.encode()) * (1000 if self._endless else 1)
        self._plans[prompt, seed] = plan = plan if self._endless else (*plan, 257)
        return plan


class CountingReward:
    """A scorer: the more distinct tokens a response has, the better."""

    async def score(self, samples: Sequence[Sample]) -> list[Sample]:
        """Each with its score."""
        return [
            replace(
                sample,
                reward_status=RewardStatus.SCORED,
                score=Score(value=float(len(set(sample.response_ids)))),
            )
            for sample in samples
        ]


async def greeted(generator: Any) -> Sample:
    """What `generator` makes of "hello" with an engine that says "good morning"; then it is closed."""
    engine = TokenEngine(lambda prompt, seed: "good morning")
    ctx = EngineContext(engine, engine.tokenizer, Sampling(max_tokens=50), CountingReward())
    try:
        (found,) = await generator.generate(ctx, sample_of(prompt=Prompt(prompt_id="p", text="hello")))
    finally:
        await generator.close()
    made: Sample = found
    return made
