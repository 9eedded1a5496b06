"""The order in which a bash script runs: chains, branches, loops and subshells.

Where a condition is not known, both ways are taken, but none that ends the script. What they set differently
is unknown then. So is what a loop of unknown rounds sets.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from rlcore import ConfigError
from rlcore_import.bash.assignments import let
from rlcore_import.bash.conditions import Status, any_of, matches, negation
from rlcore_import.bash.training import Training
from rlcore_import.bash.tree import Case, Chain, Function, Group, If, Loop, Node, Pipeline
from rlcore_import.bash.values import Values
from rlcore_import.bash.words import Command, is_known

_ROUNDS = 1000
"""The most rounds of all loops of a script that are followed."""


class Leave(Exception):  # noqa: N818  # no error
    """`exit`, `return`, `break` or `continue`. `levels`: how many loops."""

    def __init__(self, kind: str, where: str, levels: int = 1, status: Status = None) -> None:
        self.kind, self.where, self.levels, self.status = kind, where, levels, status


class _RoundsUnknown(Exception):  # noqa: N818  # no error
    """A loop has too many rounds, or a number that is not known."""


@dataclass
class Flow(ABC):
    """Walks through a script's tree; `command` says what each command does."""

    values: Values
    training: Training = field(default_factory=Training)
    loops: list[bool] = field(default_factory=list)
    """One entry for each loop that runs: whether its rounds are known."""

    branches: int = 0
    """How many of them, one in another, may not run."""

    status: Status = True
    """`$?`"""

    _rounds: int = 0
    _maybe_returned: bool = False
    _doubt: str = ""
    """The last condition that is not known."""

    @abstractmethod
    def command(self, command: Command) -> Status:
        """Run it."""

    def until_return(self, run: Callable[[], Status]) -> Status:
        """Runs a function or a sourced file. After a `return` that may have been, its changes are unknown."""
        before, outer, self._maybe_returned = len(self.values.changed), self._maybe_returned, False
        try:
            status = run()
        except Leave as left:
            if left.kind != "return":
                raise
            status = left.status
        if self._maybe_returned:
            status = None
            for name in self.values.changed[before:]:
                self.values.forget(name, f"changes by whether {self._doubt} returns")
        self._maybe_returned = outer
        return status

    def body(self, chains: list[Chain]) -> Status:
        status: Status = True
        for chain in chains:
            if chain.background:
                self.apart(partial(self._chain, chain))
                status = True
            else:
                status = self._chain(chain)
        return status

    def _chain(self, chain: Chain) -> Status:
        status = self._pipeline(chain.steps[0][1])
        for operator, pipeline in chain.steps[1:]:
            ends = operator == "||"  # by success
            if status is None:
                status = self._either([partial(self._pipeline, pipeline), partial(bool, ends)])
            elif status is not ends:
                status = self._pipeline(pipeline)
        return status

    def _pipeline(self, pipeline: Pipeline) -> Status:
        *first, last = pipeline.parts
        if not first:
            status = self.node(last)
        else:  # each in a shell of its own
            for part in first:
                self.apart(partial(self.node, part))
            status = self.apart(lambda: self.node(last))
        if status is None:
            self._doubt = f"`{' '.join(pipeline.text.split())}` ({pipeline.where})"
        self.status = negation(status) if pipeline.negated else status
        return self.status

    def apart(self, run: Callable[[], Status]) -> Status:
        """In a shell of its own: what it sets holds there alone."""
        outer, self.values = self.values, self.values.copy()
        loops, self.loops = self.loops, []
        try:
            return run()
        except Leave as left:
            return left.status
        finally:
            files = self.values.files
            self.values, self.loops = outer, loops
            self.values.files = files

    def _either(self, ways: Sequence[Callable[[], Status]]) -> Status:
        """One of `ways` is the script's, and which one is not known. Leave: each of them leaves."""
        before, doubt = self.values, self._doubt
        ends: list[tuple[Values, Status]] = []
        leaves: list[Leave] = []
        for way in ways:
            self.values = before.copy()
            self.branches += 1
            try:
                status = way()
            except Leave as left:
                leaves.append(left)
            else:
                ends.append((self.values, status))
            finally:
                self.branches -= 1
        self.values, self._doubt, self.status = before, doubt, None
        if not ends:
            raise next((leave for leave in leaves if leave.kind != "exit"), leaves[0])
        for leave in leaves:
            self._maybe_leave(leave)
        (self.values, status), *others = ends
        for values, other in others:
            self.values.merge(values, f"changes by a condition that rlcore does not know, {doubt}")
            status = status if status is other else None
        return status

    def _maybe_leave(self, left: Leave) -> None:
        """Read on as if it did not: a script that ends has no training command behind it."""
        if left.kind == "return":
            self._maybe_returned = True
        elif left.kind in ("break", "continue") and self.loops:
            if left.levels > 1:
                raise ConfigError(
                    f"{left.where}: found {left.kind} {left.levels} under a condition that rlcore does not "
                    f"know, {self._doubt}, expected a known one; give its variables with --var NAME=VALUE."
                )
            if self.loops[-1]:
                raise _RoundsUnknown

    def node(self, node: Node) -> Status:
        match node:
            case Command():
                return self.command(node)
            case Group():
                return self.apart(lambda: self.body(node.body)) if node.shell else self.body(node.body)
            case If():
                return self._if(node.arms, node.other)
            case Case():
                return self._case(node.arms, self.values.known(node.word))
            case Loop():
                return self._loop(node)
            case Function():
                self.values.functions[node.name] = node
                self.values.unknown.pop(node.name, None)
                return True

    def _if(self, arms: list[tuple[list[Chain], list[Chain]]], other: list[Chain]) -> Status:
        if not arms:
            return self.body(other)
        (condition, body), *rest = arms
        status = self.body(condition)
        if status is None:
            return self._either([lambda: self.body(body), lambda: self._if(rest, other)])
        return self.body(body) if status else self._if(rest, other)

    def _case(self, arms: list[tuple[list[str], list[Chain], str]], word: str | None) -> Status:
        if not arms:
            return True
        fits = any_of([matches(word, pattern, self.values) for pattern in arms[0][0]])
        if fits is None:
            self._doubt = f"a case with {' | '.join(arms[0][0])}"
            return self._either([lambda: self._arm(arms, word), lambda: self._case(arms[1:], word)])
        return self._arm(arms, word) if fits else self._case(arms[1:], word)

    def _arm(self, arms: list[tuple[list[str], list[Chain], str]], word: str | None) -> Status:
        _, body, end = arms[0]
        status = self.body(body)
        if end == ";;&":
            return self._case(arms[1:], word)
        return self._arm(arms[1:], word) if end == ";&" and len(arms) > 1 else status

    def _loop(self, loop: Loop) -> Status:
        values, found = self.values.copy(), self.training
        try:
            self._known_rounds(loop)
        except _RoundsUnknown:
            self.values, self.training = values, found
            self._unknown_rounds(loop)
        return None

    def _known_rounds(self, loop: Loop) -> None:
        """_RoundsUnknown: how many there are depends on what is not known."""
        if loop.kind == "for":
            words = self.values.all_fields(loop.words)
            if not all(map(is_known, words)):
                raise _RoundsUnknown
            for word in words:
                self.values.assign(loop.name, word, loop.where)
                if not self._round(loop.body, known=True):
                    return
            return
        if loop.kind == "((":
            let(loop.words[:1], loop.where, self.values)
        while (status := self._goes_on(loop)) is not False:
            if status is None or not self._round(loop.body, known=True):
                if status is None:
                    raise _RoundsUnknown
                return
            if loop.kind == "((":
                let(loop.words[2:], loop.where, self.values)

    def _goes_on(self, loop: Loop) -> Status:
        if loop.kind == "((":
            return let(loop.words[1:2], loop.where, self.values) if loop.words[1].strip() else True
        if loop.kind == "select":
            return None
        status = self.body(loop.condition)
        return negation(status) if loop.kind == "until" else status

    def _round(self, body: list[Chain], known: bool) -> bool:
        """Whether another may follow. _RoundsUnknown: there were too many."""
        self._rounds += known
        if known and self._rounds > _ROUNDS:
            raise _RoundsUnknown
        self.loops.append(known)
        try:
            self.body(body)
        except Leave as left:
            if left.kind not in ("break", "continue"):
                raise
            if left.levels > 1:
                raise Leave(left.kind, left.where, left.levels - 1) from None
            return left.kind == "continue"
        finally:
            self.loops.pop()
        return True

    def _unknown_rounds(self, loop: Loop) -> None:
        """What the body changes is not known in it, nor behind it; so it is read until nothing is added."""
        why = f"changes in a loop whose rounds rlcore does not know ({loop.where})"
        values, found = self.values.copy(), self.training
        names = {loop.name} - {""}
        while True:
            self.values, self.training = values.copy(), found
            before = len(self.values.changed)
            for name in names:
                self.values.forget(name, why)
            self._either([partial(self._unknown_round, loop), lambda: None])
            more = set(self.values.changed[before:])
            if more <= names:
                break
            names |= more
        for name in names:
            self.values.forget(name, why)

    def _unknown_round(self, loop: Loop) -> Status:
        if loop.kind == "((":
            let(loop.words, loop.where, self.values)
        self.body(loop.condition)
        self._round(loop.body, known=False)
        return None
