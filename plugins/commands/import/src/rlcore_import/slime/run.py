"""The flags of one run of slime."""

from typing import Any

from rlcore import ConfigError
from rlcore_import.run import Flags

PROMPT_TOKENS = 1024
"""Longest prompt where slime's run bounds none: as long as rlcore's own default."""
FULLY_ASYNC = 2
"""`--max-staleness` where a fully asynchronous run bounds none."""

RECIPES = {
    **{"grpo": "grpo", "gspo": "gspo", "cispo": "cispo", "ppo": "ppo"},
    **{"reinforce_plus_plus": "reinforce++", "reinforce_plus_plus_baseline": "reinforce++-baseline"},
}
"""`--advantage-estimator` → recipe."""


class Run(Flags):
    """The flags of one run of slime. `entry`: train.py or train_async.py, if it was named."""

    @property
    def trains_on_given(self) -> bool:
        """Supervised fine-tuning: nothing is generated."""
        return self.text("loss-type") == "sft_loss"

    @property
    def ranks(self) -> int:
        return self.number("actor-num-nodes", 1) * self.number("actor-num-gpus-per-node", 8)

    @property
    def staleness(self) -> int:
        """Weight versions that generation may run ahead, as the program and miles' flags say."""
        if self.has("fully-async"):
            return self.number("max-weight-staleness", FULLY_ASYNC)
        return 1 if self.entry == "train_async.py" else 0

    @property
    def is_asynchronous(self) -> bool:
        """Whether requests are under way while weights change."""
        is_ahead = bool(self.staleness) or "fully_async" in self.text("rollout-function-path")
        return is_ahead or self.has("partial-rollout")

    @property
    def estimator(self) -> str:
        return self.text("advantage-estimator", "grpo")

    @property
    def compares_siblings(self) -> bool:
        """Whether the advantage compares the samples of a prompt."""
        generates = not (self.trains_on_given or self.has("debug-rollout-only"))
        return generates and self.estimator in ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")

    @property
    def max_tokens(self) -> int:
        """The tokens of a micro-batch, over all context-parallel ranks."""
        return self.number("max-tokens-per-gpu", 8192) * self.number("context-parallel-size", 1)

    @property
    def prompt_tokens(self) -> int:
        """The tokens of the longest prompt; without a limit, what the context leaves beside the response."""
        context = self.number("rollout-max-context-len", 0)
        left = context - self.number("rollout-max-response-len", 0)
        return self.number("rollout-max-prompt-len", left if context and left > 0 else PROMPT_TOKENS)

    @property
    def bounds_prompts(self) -> bool:
        """Whether a flag says the tokens of the longest prompt."""
        return self.has("rollout-max-prompt-len")

    @property
    def samples(self) -> int:
        return self.number("rollout-batch-size", 1) * self.number("n-samples-per-prompt", 1)

    @property
    def minibatches(self) -> int | None:
        """Optimizer steps for each rollout; None: the batches do not divide it."""
        steps = self.number("num-steps-per-rollout", 0)
        batch = self.number("global-batch-size", self.samples)
        if steps or not batch or self.samples % batch:
            return steps or None
        return self.samples // batch

    @property
    def clip(self) -> dict[str, Any]:
        """Bounds of the policy ratio."""
        low = self.real("eps-clip", 0.2)
        # a ratio is never below 0, so that CISPO's 5 bounds it as little as 1
        return {"loss.clip_low": min(low, 1.0), "loss.clip_high": self.real("eps-clip-high", low)}

    @property
    def engines(self) -> dict[str, Any]:
        """How many engines, of how many GPUs each. ConfigError."""
        gpus = self.number("rollout-num-gpus", self.ranks if self.has("colocate") else 1)
        each, stages = self.number("rollout-num-gpus-per-engine", 1), self.number("sglang-pp-size", 1)
        if not each or not stages or gpus % each or each % stages:
            is_default = not (self.has("rollout-num-gpus") or self.has("colocate"))
            default = "; --rollout-num-gpus is missing" if is_default else ""
            raise ConfigError(
                f"--rollout-num-gpus-per-engine: found {each}, expected a divisor of the {gpus} GPUs of all "
                f"engines and a multiple of the {stages} stages of each{default}."
            )
        settings: dict[str, Any] = {"engines": gpus // each}
        if each > stages:
            settings["sglang.tp_size"] = each // stages
        node = self.number("actor-num-gpus-per-node", 8)
        if each > node:
            settings["sglang.nnodes"] = each // node
        return settings
