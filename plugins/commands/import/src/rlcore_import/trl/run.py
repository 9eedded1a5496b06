"""The flags of one run of TRL."""

from typing import ClassVar

from rlcore_import.run import Flags

LEARNING_RATES = {"grpo": 1e-6, "sft": 2e-5, "dpo": 1e-6}
"""TRL's defaults."""


class Run(Flags):
    """The flags of one run. `entry`: the trainer."""

    dashes: ClassVar[str] = "--"

    @property
    def kind(self) -> str:
        """`grpo`, `sft` or `dpo`."""
        return self.entry or "grpo"

    @property
    def devices(self) -> int:
        """How many processes accelerate starts."""
        return self.number("num_processes", 1)

    @property
    def each(self) -> int:
        """Samples of a forward pass over all devices."""
        return self.number("per_device_train_batch_size", 8) * self.devices

    @property
    def accumulation(self) -> int:
        return self.number("gradient_accumulation_steps", 1)

    @property
    def completions(self) -> int:
        """Completions that are generated together."""
        given = self.number("generation_batch_size", 0)
        return given or self.each * self.number("steps_per_generation", self.accumulation)

    @property
    def group(self) -> int:
        return self.number("num_generations", 8)

    @property
    def minibatches(self) -> int:
        """Optimizer steps for each generation; 0: no whole number."""
        if self.kind != "grpo":
            return 1
        batch = self.each * self.accumulation
        return 0 if self.completions % batch else self.completions // batch

    @property
    def prompts(self) -> int:
        """Prompts of a step; 0: no whole number."""
        if self.kind != "grpo":
            return self.each * self.accumulation
        return 0 if self.completions % self.group else self.completions // self.group

    @property
    def max_length(self) -> int:
        """Tokens of prompt and response, in SFT and DPO."""
        return self.number("max_length", 1024)

    @property
    def prompt_tokens(self) -> int:
        if self.kind != "grpo":
            return self.number("max_prompt_length", self.max_length)
        left = self.number("vllm_max_model_length", 0) - self.response_tokens
        return self.number("max_prompt_length", left if left > 0 else 1024)

    @property
    def response_tokens(self) -> int:
        return self.number("max_completion_length", 512) if self.kind == "grpo" else self.max_length

    @property
    def uses_vllm(self) -> bool:
        return self.is_on("use_vllm")

    @property
    def lora_rank(self) -> int:
        return self.number("lora_r", 16)

    @property
    def loss_type(self) -> str:
        return self.text("loss_type", {"grpo": "dapo", "sft": "nll", "dpo": "sigmoid"}[self.kind])
