"""`Record`: the tokens of one session, as the engine read and sampled them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlcore import Completion, GenerationStatus, Sample, Span, Tokenizer
from rlcore_session.chats import Ask, Turn, chat_keys, next_key
from rlcore_toolkit import render_prompt, render_suffix


@dataclass(eq=False, kw_only=True)
class Branch:
    """Tokens that grew without a break: one training sample."""

    prompt_ids: tuple[int, ...]
    response_ids: list[int] = field(default_factory=list)
    loss_mask: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    def observe(self, ids: Sequence[int]) -> None:
        """Tokens that nobody sampled."""
        self.response_ids += ids
        self.loss_mask += [0] * len(ids)
        self.log_probs += [0.0] * len(ids)

    def sample(self, completion: Completion) -> None:
        """Tokens that the policy sampled."""
        start = len(self.response_ids)
        for span in completion.spans:
            if not self.spans or self.spans[-1].version != span.version:
                self.spans.append(replace(span, start=start + span.start if self.spans else 0))
        self.response_ids += completion.token_ids
        self.loss_mask += [1] * len(completion.token_ids)
        self.log_probs += completion.log_probs


@dataclass(frozen=True, eq=False, kw_only=True)
class Node:
    """The end of a turn: response tokens of `branch` up to it, the last `sampled` of which it sampled."""

    branch: Branch
    length: int
    sampled: int

    @property
    def is_tip(self) -> bool:
        """Whether the branch has not gone on from here."""
        return self.length == len(self.branch.response_ids)

    @property
    def ids(self) -> tuple[int, ...]:
        """Prompt and response up to here."""
        return self.branch.prompt_ids + tuple(self.branch.response_ids[: self.length])


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the engine is asked. `node`: the turn that it goes on from, whose ids `suffix` follows.

    `key`: that of the chat (`chat_keys`).
    """

    key: str
    node: Node | None
    prompt_ids: tuple[int, ...]
    suffix: tuple[int, ...] = ()

    @property
    def response_length(self) -> int:
        """Response tokens that its sample has, before the new turn."""
        return self.node.length + len(self.suffix) if self.node is not None and self.node.is_tip else 0


class Record:
    """Knows which chats were sampled, and goes on from their ids.

    A chat that begins with one that was sampled goes on from its very ids: only the new messages are rendered
    and tokenised. Any other is a new trajectory: a branch of its own. So is a second way to go on from the
    same turn; it shares the ids up to there, as its prompt, which is trained on where it was sampled.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._nodes: dict[str, Node] = {}
        self._branches: list[Branch] = []

    @property
    def branches(self) -> Sequence[Branch]:
        """In the order of their last turns."""
        return self._branches

    def plan(self, ask: Ask) -> Plan:
        """The ids to ask the engine for. Raises `DataError` where the chat template cannot write them."""
        keys = list(chat_keys(ask))
        how: dict[str, Any] = {"tools": ask.tools, "options": ask.options}
        for count in range(len(keys) - 1, 0, -1):
            node = self._nodes.get(keys[count - 1])
            if node is not None:
                ids, before, new = node.ids, ask.messages[:count], ask.messages[count:]
                sampled = ids[len(ids) - node.sampled :]
                suffix = render_suffix(self._tokenizer, before, new, sampled=sampled, **how)
                return Plan(key=keys[-1], node=node, prompt_ids=ids + suffix, suffix=suffix)
        return Plan(key=keys[-1], node=None, prompt_ids=render_prompt(self._tokenizer, ask.messages, **how))

    def add(self, plan: Plan, turn: Turn) -> None:
        """`turn` is what the engine answered to `plan`."""
        if plan.node is not None and plan.node.is_tip:
            branch = plan.node.branch
            branch.observe(plan.suffix)
            self._branches.remove(branch)
        else:
            branch = Branch(prompt_ids=plan.prompt_ids)
        branch.sample(turn.completion)
        self._branches.append(branch)
        self._nodes[next_key(plan.key, turn.message)] = Node(
            branch=branch, length=len(branch.response_ids), sampled=len(turn.completion.token_ids)
        )

    def samples(self, origin: Sample, status: GenerationStatus, text: str) -> list[Sample]:
        """One for each branch; all are of one rollout, and a reward reads the same `text` of them."""
        return [
            replace(
                origin,
                prompt_ids=branch.prompt_ids,
                response_ids=tuple(branch.response_ids),
                loss_mask=tuple(branch.loss_mask),
                log_probs=tuple(branch.log_probs),
                spans=tuple(branch.spans),
                status=status,
                text=text,
            )
            for branch in self._branches
        ]
