"""A plain function as a reward. The names of its parameters say what it gets.

    def brevity(response): return 1 / (1 + len(response))

Reward functions of TRL (`completions`, columns as keywords), verl (`compute_score`) and slime (`custom_rm`)
work unchanged.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

from pydantic import Field

from rlcore.api.config import flag_name
from rlcore.api.part import RewardPart
from rlcore.api.part_config import RewardConfig
from rlcore.api.run_config import RunConfig
from rlcore.api.scoring import Reward
from rlcore.api.tokens import Tokenizer, token_spans
from rlcore.api.types import Json, Prompt, Sample, Score
from rlcore.tasks import together

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

MODEL = "model"
"""Among the settings that a function of slime sees: the directory of the model, which is no `RunConfig`'s."""

SLIME_ARGUMENTS: Mapping[str, str] = {
    "hf_checkpoint": MODEL,
    "n_samples_per_prompt": "group_size",
    "num_rollout": "steps",
    "rollout_batch_size": "prompts_per_step",
    "rollout_max_prompt_len": "max_prompt_tokens",
    "rollout_max_response_len": "max_response_tokens",
    "rollout_seed": "seed",
    "rollout_stop": "stop",
    "rollout_stop_token_ids": "stop_token_ids",
    "rollout_temperature": "temperature",
    "rollout_top_k": "top_k",
    "rollout_top_p": "top_p",
    "seed": "seed",
}
"""Attribute of slime's `args` → the setting of the run that it has the value of."""

SLIME_UNSET = ("custom_rm_path", "eval_reward_key", "reward_key", "rm_type", "rm_url")
"""Attributes that are None unless `SlimeConfig.args` has them, as a flag of slime that nobody gave is."""

SLIME_TYPES = "slime.utils.types"
"""The module of slime's own samples, for functions that ask for nothing else."""

TRL_LOGS = frozenset({"log_metric", "log_extra"})
"""Functions that TRL gives: for a number, which becomes a part, and for texts, which go nowhere."""

TOKENIZER, SPANS = "tokenizer", "token_spans"


class SlimeConfig(RewardConfig):
    """Settings of a function with the parameters of slime's."""

    args: dict[str, Json] = Field(
        default_factory=dict,
        description="further attributes of its `args`, by slime's names: --reward.NAME.args.rm_url VALUE",
    )


def config_of(function: Callable[..., Any]) -> type[RewardConfig]:
    """The class of the settings of a function that scores."""
    return SlimeConfig if _slime_parameters(function) else RewardConfig


def _slime_parameters(function: Callable[..., Any]) -> frozenset[str]:
    """Those that slime gives to `function`; empty: it is none of slime's."""
    parameters = inspect.signature(function).parameters.values()
    named = {one.name for one in parameters if one.kind is not one.VAR_POSITIONAL}
    return next((names for names in SLIME if names <= named), frozenset())


class SlimeArguments(SimpleNamespace):
    """slime's `args`: the settings of the run by slime's names, and those of `SlimeConfig`."""

    _flag = ""  # that gives further ones; empty: none does

    def __getattr__(self, name: str) -> Any:
        advice = f"; give the value by {self._flag}.{name} VALUE" if self._flag else ""
        raise AttributeError(
            f"args.{name} is no setting of the run that rlcore knows by slime's name{advice}."
        )


def slime_arguments(settings: Mapping[str, Any], part: RewardPart) -> SlimeArguments:
    """`settings`: of the run, by rlcore's names. Those of the `part` win."""
    own: dict[str, Any] = {}
    if isinstance(part.config, SlimeConfig):
        own = {**part.config.args, "_flag": flag_name(f"reward.{part.name}.args")}
    known = {name: settings.get(key) for name, key in SLIME_ARGUMENTS.items()}
    known["rollout_top_k"] = known["rollout_top_k"] or -1  # all tokens: 0 here, -1 there
    return SlimeArguments(**{**dict.fromkeys(SLIME_UNSET), "group_rm": False, **known, **own})


def asks_for_tokenizer(part: RewardPart) -> bool:
    """Whether the reward's factory has a parameter `tokenizer`, or the function itself needs one."""
    function = part.load()
    named = {*inspect.signature(function).parameters}
    return bool({TOKENIZER, SPANS} & named or _slime_parameters(function))


def build_reward(
    part: RewardPart, tokenizer: Tokenizer | None = None, settings: Mapping[str, Any] | None = None
) -> Reward:
    """The reward of `part`. Its factory makes the reward, or is itself a function that scores.

    A function with a parameter `config` is a factory; any other function scores, and so does an object that
    is called with what rewards are given. `tokenizer`: given where `asks_for_tokenizer`. `settings`: of the
    run, by name, and the model's directory, for functions of slime; else their defaults.
    """
    factory: Any = part.load()
    if _is_function(factory):
        return FunctionReward(factory, tokenizer, slime_arguments(settings or RunConfig().values(), part))
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
    `**rest` gets the metadata that no parameter takes. The function may be a coroutine; all of its calls are
    in one event loop, to which connections that it keeps belong. `arguments`: slime's `args`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        tokenizer: Tokenizer | None = None,
        arguments: SimpleNamespace | None = None,
    ) -> None:
        self._function = function
        self._tokenizer = tokenizer
        self._arguments_of_slime = arguments
        parameters = inspect.signature(function).parameters.values()
        rest = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        self._names = [parameter.name for parameter in parameters if parameter.kind not in rest]
        self._takes_rest = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        self._slime = _slime_parameters(function)
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
            "args": self._arguments_of_slime,
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
        # At the first error the others are cancelled: the loop stays, and they would go on in the next group.
        return self._runner.run(together(self._function(**arguments) for arguments in calls))

    @cached_property
    def _runner(self) -> asyncio.Runner:
        runner = asyncio.Runner()
        weakref.finalize(self, runner.close)
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
                given[name] = self._arguments_of_slime if name == "args" else self._slime_sample(sample)
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
