"""What slime gives its reward functions: `args` and samples of its own."""

import inspect
import sys
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from rlcore import RewardConfig, RunConfig, Sample, Tokenizer, flag_name
from rlcore_functions.config import SlimeConfig
from rlcore_functions.parameters import SLIME

__tracebackhide__ = True  # an error names the line of the function that asked for something

ARGUMENTS: Mapping[str, str] = {
    "hf_checkpoint": "model",
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

UNSET = ("custom_rm_path", "eval_reward_key", "reward_key", "rm_type", "rm_url")
"""Attributes that are None unless `SlimeConfig.args` has them, as a flag of slime that nobody gave is."""

TYPES = "slime.utils.types"
"""The module of slime's own samples, for functions that ask for nothing else."""


def parameters_of(function: Callable[..., Any]) -> frozenset[str]:
    """Those that slime gives to `function`; empty: it is none of slime's."""
    parameters = inspect.signature(function).parameters.values()
    named = {parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL}
    return next((names for names in SLIME if names <= named), frozenset())


class Arguments(SimpleNamespace):
    """slime's `args`: the settings of the run by slime's names, and those of `SlimeConfig`."""

    _flag = ""  # that gives further ones; empty: none does

    def __getattr__(self, name: str) -> Any:
        advice = f"; give the value by {self._flag}.{name} VALUE" if self._flag else ""
        raise AttributeError(
            f"args.{name} is no setting of the run that rlcore knows by slime's name{advice}."
        )


def arguments_of(settings: Mapping[str, Any], config: RewardConfig, name: str) -> Arguments:
    """`settings`: of the run, by rlcore's names; empty: the defaults.

    Those of the `config` win. `name`: of the reward.
    """
    settings = settings or RunConfig().values()
    own: dict[str, Any] = {}
    if isinstance(config, SlimeConfig):
        own = {**config.args, "_flag": flag_name(f"reward.{name}.args")}
    known = {theirs: settings.get(ours) for theirs, ours in ARGUMENTS.items()}
    known["rollout_top_k"] = known["rollout_top_k"] or -1  # all tokens: 0 here, -1 there
    return Arguments(**{**dict.fromkeys(UNSET), "group_rm": False, **known, **own})


def sample_of(sample: Sample, tokenizer: Tokenizer | None) -> Any:
    """The sample as slime's own, where the function has imported slime; else with its attributes.

    A chat is the text that the policy read, as slime's template makes it.
    """
    prompt: Any = sample.prompt.text
    if not isinstance(prompt, str) and tokenizer is not None:
        prompt = tokenizer.decode(list(sample.prompt_ids), skip_special_tokens=False)
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
    types = sys.modules.get(TYPES)
    if types is None:
        return SimpleNamespace(**fields)
    return types.Sample(**{**fields, "status": types.Sample.Status(sample.status.value)})
