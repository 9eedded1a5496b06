"""A plain function as a reward. The names of its parameters say what it gets.

    def brevity(response): return 1 / (1 + len(response))

Reward functions of TRL (`completions`, columns as keywords), verl (`compute_score`) and slime (`custom_rm`)
work unchanged.
"""

from __future__ import annotations

import asyncio
import inspect
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from numbers import Real
from typing import Any

from rlcore import Prompt, RewardConfig, Sample, Score, Tokenizer, did_you_mean
from rlcore_functions import slime
from rlcore_functions.parameters import (
    GROUP_PARAMETERS,
    LABELS,
    SAMPLE_PARAMETERS,
    SPANS,
    TOKENIZER,
    TRL_ALWAYS,
    TRL_LOGS,
)
from rlcore_machine import together
from rlcore_toolkit import token_spans

__tracebackhide__ = True  # an error names a line of the function, not of what calls it


def factory_of(function: Callable[..., Any], name: str) -> FunctionFactory:
    """The factory of the reward `name`, which `function` is."""
    reads_tokens = {TOKENIZER, SPANS} & {*inspect.signature(function).parameters}
    kind = TokenFunctionFactory if reads_tokens or slime.parameters_of(function) else FunctionFactory
    return kind(function, name)


class FunctionFactory:
    """Makes the reward `name` of `function`."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function, self._name = function, name
        self._reward = FunctionReward(function)

    def __call__(self, config: RewardConfig, settings: Mapping[str, Any]) -> FunctionReward:
        """`settings`: of the run."""
        return FunctionReward(self._function, arguments=slime.arguments_of(settings, config, self._name))

    def prompt_complaints(self, config: RewardConfig, prompts: Sequence[Prompt]) -> Iterable[str]:
        """What the function asks for that a prompt lacks."""
        return map(self._reward.missing, prompts)


class TokenFunctionFactory(FunctionFactory):
    """The same for a function that needs the run's tokenizer: a run without such a one never loads it."""

    def __call__(
        self, config: RewardConfig, settings: Mapping[str, Any], tokenizer: Tokenizer | None = None
    ) -> FunctionReward:
        """`settings`, `tokenizer`: of the run."""
        return FunctionReward(self._function, tokenizer, slime.arguments_of(settings, config, self._name))


class FunctionReward:
    """Calls `function` for each sample, or once for a group if it has a parameter of `GROUP_PARAMETERS`.

    `tokenizer` is the run's, `token_spans` the places of the response's tokens in its text. Any other
    parameter is a key of the prompt's metadata; where the key is missing, the parameter's default counts.
    `**rest` gets the metadata that no parameter takes; that of a group also the label and what TRL passes
    always. The function may be a coroutine; all of its calls are
    in one event loop, to which connections that it keeps belong. `arguments`: slime's `args`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        tokenizer: Tokenizer | None = None,
        arguments: slime.Arguments | None = None,
    ) -> None:
        self._function = function
        self._tokenizer = tokenizer
        self._arguments_of_slime = arguments
        parameters = inspect.signature(function).parameters.values()
        rest = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        self._names = [parameter.name for parameter in parameters if parameter.kind not in rest]
        self._takes_rest = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        self._slime = slime.parameters_of(function)
        self._takes_group = bool({*self._names} & {*GROUP_PARAMETERS})
        self._known = {**GROUP_PARAMETERS, **SAMPLE_PARAMETERS} if self._takes_group else SAMPLE_PARAMETERS
        given = {*self._known, *self._slime, TOKENIZER, SPANS, *(TRL_LOGS if self._takes_group else ())}
        required = {p.name for p in parameters if p.default is p.empty}
        self._from_prompt = [name for name in self._names if name in required - given]

    def missing(self, prompt: Prompt) -> str:
        """What it asks for that `prompt` does not have, in a sentence; empty: nothing."""
        for name in self._from_prompt:
            if name in prompt.metadata:
                continue
            if name not in LABELS:
                if near := did_you_mean(name, {**self._known, **dict.fromkeys(LABELS), **prompt.metadata}):
                    return f"its parameter {name!r} is no key of the prompt's metadata.{near}"
                return (
                    f"it asks for {name!r}, which is no key of the prompt's metadata: write it into the "
                    '"metadata" of each row, or give the parameter a default; if it is a column of the file, '
                    "add --source.columns-as-metadata, which copies all but those that settings name "
                    "(messages, chosen, …) and those that steer the run (reward, teacher, …)."
                )
            if prompt.label is None:
                return (
                    f"it asks for {name!r}, and there is no label: --source.label-key says under which key."
                )
        return ""

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """One score for each sample."""
        calls = [self._arguments(sample) for sample in samples]
        if not self._takes_group:
            return list(map(_score, self._called(calls)))
        names = dict.fromkeys(name for arguments in calls for name in arguments)
        columns: dict[str, Any] = {name: [arguments.get(name) for arguments in calls] for name in names}
        logged: dict[str, float] = {}
        whole = {
            TOKENIZER: self._tokenizer,
            "args": self._arguments_of_slime,
            "log_metric": logged.__setitem__,
            "log_extra": lambda *_: None,
        }
        columns.update({name: value for name, value in whole.items() if name in self._names})
        [answers] = self._called([columns])
        if not isinstance(answers, Iterable) or isinstance(answers, str | Mapping):
            found = "None" if answers is None else f"a {type(answers).__name__}"
            raise ValueError(f"it returned {found}; expected a list with a number for each sample.")
        return [replace(score, parts={**logged, **score.parts}) for score in map(_of_group, answers)]

    def _called(self, calls: Sequence[Mapping[str, Any]]) -> list[Any]:
        # A function, or an object whose `__call__` is one.
        method = getattr(self._function, "__call__", None)  # noqa: B004 # its method, not whether it has one
        if not (inspect.iscoroutinefunction(self._function) or inspect.iscoroutinefunction(method)):
            return [self._function(**arguments) for arguments in calls]
        # At the first error the others are cancelled: the loop stays, and they would go on in the next group.
        return self._runner.run(together(self._function(**arguments) for arguments in calls))

    @cached_property
    def _runner(self) -> asyncio.Runner:
        runner = asyncio.Runner()
        weakref.finalize(self, _close, runner)
        return runner

    def _arguments(self, sample: Sample) -> dict[str, Any]:
        """The function's arguments for one sample."""
        metadata = sample.prompt.metadata
        if sentence := self.missing(sample.prompt):
            raise ValueError(sentence)
        given: dict[str, Any] = {}
        for name in self._names:
            if self._takes_group and name in TRL_LOGS:
                continue
            if name in self._slime:
                given[name] = (
                    self._arguments_of_slime if name == "args" else slime.sample_of(sample, self._tokenizer)
                )
            elif name in self._known:
                given[name] = self._known[name](sample)
            elif name == TOKENIZER:
                given[name] = self._tokenizer
            elif name == SPANS and self._tokenizer is not None:
                given[name] = token_spans(self._tokenizer, sample.response_ids)
            elif name in metadata or (name in LABELS and sample.prompt.label is not None):
                given[name] = metadata.get(name, sample.prompt.label)
        if self._takes_rest:
            always = {name: GROUP_PARAMETERS[name](sample) for name in TRL_ALWAYS if self._takes_group}
            label = {} if sample.prompt.label is None else {"label": sample.prompt.label}
            given = {**(label if self._takes_group else {}), **metadata, **always, **given}
        return given


def _close(runner: asyncio.Runner) -> None:
    """Close the loop of a reward that nobody has any more.

    Garbage may be collected while another loop runs, beside which no other can. Each call has awaited its
    tasks, so nothing is left then but to close.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        runner.close()
    else:
        runner.get_loop().close()


def _score(answer: Any) -> Score:
    """`answer` as a score: it is a number, a `Score`, or verl's dict of a `score` and numbers, which become
    parts.
    """
    if answer is None:
        raise ValueError("it returned None; expected a number or a Score.")
    if isinstance(answer, Score):
        return answer
    if isinstance(answer, Mapping):
        if "score" not in answer:
            raise ValueError(f"it returned a dict with {', '.join(map(repr, answer))}; expected its 'score'.")
        plain = {name: _plain(value) for name, value in answer.items() if name != "score"}
        parts: dict[str, Any] = {name: value for name, value in plain.items() if isinstance(value, Real)}
        return Score(value=answer["score"], parts=parts)
    return Score(value=answer)


def _plain(value: Any) -> Any:
    """A scalar of numpy or torch as Python's; anything else as it is."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def _of_group(answer: Any) -> Score:
    """The same of one of a group. In TRL None means that the function does not apply to the sample."""
    return Score(value=0.0, applies=False) if answer is None else _score(answer)
