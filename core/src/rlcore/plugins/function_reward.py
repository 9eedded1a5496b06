"""A plain function as a reward. The names of its parameters say what it gets.

    def brevity(response): return 1 / (1 + len(response))

Reward functions of TRL (`completions`, columns as keywords), verl (`compute_score`) and slime (`custom_rm`)
work unchanged.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from rlcore.api.part import RewardPart
from rlcore.api.scoring import Reward
from rlcore.api.tokens import Tokenizer, token_spans
from rlcore.api.types import Prompt, Sample, Score

Getter = Callable[[Sample], Any]

LABELS = ("label", "answer", "ground_truth", "solution", "target")
"""Parameters that get the prompt's label, unless its metadata has a key of that name."""

SAMPLE_PARAMETERS: Mapping[str, Getter] = {
    "sample": lambda sample: sample,
    "prompt": lambda sample: sample.prompt.text,
    "response": lambda sample: sample.text,
    "solution_str": lambda sample: sample.text,
    "metadata": lambda sample: sample.prompt.metadata,
    "extra_info": lambda sample: sample.prompt.metadata,
    "data_source": lambda sample: sample.prompt.metadata.get("data_source"),
}
"""Parameters of a function that is called for each sample."""

GROUP_PARAMETERS: Mapping[str, Getter] = {
    "samples": lambda sample: sample,
    "prompts": lambda sample: sample.prompt.text,
    "responses": lambda sample: sample.text,
    "completions": lambda sample: _completion(sample),
    "completion_ids": lambda sample: list(sample.response_ids),
    "solution_strs": lambda sample: sample.text,
    "ground_truths": lambda sample: sample.prompt.label,
    "extra_infos": lambda sample: sample.prompt.metadata,
    "data_sources": lambda sample: sample.prompt.metadata.get("data_source"),
}
"""A function with one of these parameters is called once for each group; then each parameter is a list."""

SLIME = (frozenset({"args", "sample"}), frozenset({"args", "samples"}))
"""The parameters of slime's functions for a sample, and for a group."""

SLIME_TYPES = "slime.utils.types"
"""The module of slime's own samples, for functions that ask for nothing else."""

TRL_LOGS = frozenset({"log_metric", "log_extra"})
"""Functions that TRL gives: for a number, which becomes a part, and for texts, which go nowhere."""

TOKENIZER, SPANS = "tokenizer", "token_spans"


def asks_for_tokenizer(part: RewardPart) -> bool:
    """Whether the reward's factory has a parameter `tokenizer`, or the function itself needs one."""
    named = set(inspect.signature(part.load()).parameters)
    return bool({TOKENIZER, SPANS} & named) or any(named >= names for names in SLIME)


def build_reward(part: RewardPart, tokenizer: Tokenizer | None = None) -> Reward:
    """The reward of `part`. Its factory makes the reward, or is itself a function that scores.

    A function with a parameter `config` is a factory; any other function scores, and so does an object that
    is called with what rewards are given. `tokenizer`: given where `asks_for_tokenizer`.
    """
    factory: Any = part.load()
    if _is_function(factory):
        return FunctionReward(factory, tokenizer)
    reward: Reward = part.build(**({TOKENIZER: tokenizer} if asks_for_tokenizer(part) else {}))
    return reward


def function_of(part: RewardPart) -> FunctionReward | None:
    """The reward of `part`, without a tokenizer, where it is a function that scores."""
    factory: Any = part.load()
    return FunctionReward(factory) if _is_function(factory) else None


def _is_function(factory: Any) -> bool:
    is_function = inspect.isfunction(factory) and "config" not in inspect.signature(factory).parameters
    return is_function or (not inspect.isclass(factory) and scores(factory))


def scores(function: Callable[..., Any]) -> bool:
    """Whether a function's parameters are those of a reward."""
    named = set(inspect.signature(function).parameters)
    return "config" not in named and bool(named & {*SAMPLE_PARAMETERS, *GROUP_PARAMETERS})


class FunctionReward:
    """Calls `function` for each sample, or once for a group if it has a parameter of `GROUP_PARAMETERS`.

    `tokenizer` is the run's, `token_spans` the places of the response's tokens in its text. Any other
    parameter is a key of the prompt's metadata; where the key is missing, the parameter's default counts.
    `**rest` gets the metadata that no parameter takes. The function may be a coroutine.
    """

    def __init__(self, function: Callable[..., Any], tokenizer: Tokenizer | None = None) -> None:
        self._function = function
        self._tokenizer = tokenizer
        parameters = inspect.signature(function).parameters.values()
        rest = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        self._names = [parameter.name for parameter in parameters if parameter.kind not in rest]
        self._takes_rest = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        self._slime = next((names for names in SLIME if {*self._names} >= names), frozenset())
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
            "args": SimpleNamespace(),
            "log_metric": logged.__setitem__,
            "log_extra": lambda *_: None,
        }
        columns.update({name: value for name, value in whole.items() if name in self._names})
        [answers] = self._called([columns])
        return [replace(score, parts={**logged, **score.parts}) for score in map(_score, answers)]

    def _called(self, calls: Sequence[Mapping[str, Any]]) -> list[Any]:
        # A function, or an object whose `__call__` is one.
        method = getattr(self._function, "__call__", None)  # noqa: B004 # its method, not whether it has one
        if not (inspect.iscoroutinefunction(self._function) or inspect.iscoroutinefunction(method)):
            return [self._function(**arguments) for arguments in calls]

        async def together() -> list[Any]:
            return await asyncio.gather(*(self._function(**arguments) for arguments in calls))

        return asyncio.run(together())

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
                given[name] = SimpleNamespace() if name == "args" else self._slime_sample(sample)
            elif name in self._known:
                given[name] = self._known[name](sample)
            elif name == TOKENIZER:
                given[name] = self._tokenizer
            elif name == SPANS and self._tokenizer is not None:
                given[name] = token_spans(self._tokenizer, sample.response_ids)
            elif name in metadata or (name in LABELS and sample.prompt.label is not None):
                given[name] = metadata.get(name, sample.prompt.label)
        if self._takes_rest:
            given = {**{key: value for key, value in metadata.items() if key not in given}, **given}
        return given

    def _slime_sample(self, sample: Sample) -> Any:
        """The sample as slime's own, where the function has imported slime; else with its attributes.

        A chat is the text that the policy read, as slime's template makes it.
        """
        prompt: Any = sample.prompt.text
        if not isinstance(prompt, str) and self._tokenizer is not None:
            prompt = self._tokenizer.decode(list(sample.prompt_ids), skip_special_tokens=False)
        fields = {
            "group_index": sample.group_id,
            "index": sample.index,
            "prompt": prompt,
            "tokens": [*sample.prompt_ids, *sample.response_ids],
            "response": sample.text,
            "response_length": len(sample.response_ids),
            "label": sample.prompt.label,
            "loss_mask": list(sample.loss_mask),
            "rollout_log_probs": list(sample.log_probs),
            "status": sample.status,
            "metadata": dict(sample.prompt.metadata),
        }
        types = sys.modules.get(SLIME_TYPES)
        if types is None:
            return SimpleNamespace(**fields)
        return types.Sample(**{**fields, "status": types.Sample.Status(sample.status.value)})


def _completion(sample: Sample) -> Any:
    """The completion as TRL passes it: a text, or messages if the prompt consists of messages."""
    if isinstance(sample.prompt.text, str):
        return sample.text
    return [{"role": "assistant", "content": sample.text}]


def _score(answer: Any) -> Score:
    """`answer` as a score: it is a number, a `Score`, or verl's dict of a `score` and numbers, which become
    parts.

    None counts as 0: in TRL it means that the function does not apply to the sample.
    """
    if isinstance(answer, Score):
        return answer
    if isinstance(answer, Mapping):
        numbers = {name: value for name, value in answer.items() if isinstance(value, int | float)}
        parts = {name: value for name, value in numbers.items() if name != "score"}
        return Score(value=answer["score"], parts=parts)
    return Score(value=0.0 if answer is None else answer)
