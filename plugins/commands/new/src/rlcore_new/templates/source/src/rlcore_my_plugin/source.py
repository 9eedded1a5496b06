"""The task `my_plugin`."""

from dataclasses import replace

from rlcore import Prompt, Prompts, content_hash, content_share

from rlcore_my_plugin.config import MyPluginConfig


class MyPlugin:
    """`1203=` → `3`. rlcore shuffles the prompts, and remembers where it is."""

    def __init__(self, config: MyPluginConfig) -> None:
        self._config = config

    def prompts(self) -> Prompts:
        """Whether a prompt is held out depends on its text alone: the sets never mix."""
        digits = self._config.digits
        prompts = [_prompt(f"{number:0{digits}d}") for number in range(10**digits)]
        held_out = [prompt for prompt in prompts if self._is_held_out(prompt)]
        train = [prompt for prompt in prompts if not self._is_held_out(prompt)]
        return Prompts(train=train, held_out={"my_plugin": held_out})

    def with_responses(self) -> Prompts:
        """The same with right answers, for recipes that learn from given responses (`--algo sft`)."""
        prompts = self.prompts()
        train = [replace(prompt, responses=(str(prompt.label),)) for prompt in prompts.train]
        return Prompts(train=train, held_out=prompts.held_out)

    def _is_held_out(self, prompt: Prompt) -> bool:
        return content_share(content_hash(prompt.text)) < self._config.held_out


def _prompt(digits: str) -> Prompt:
    return Prompt(prompt_id=f"my_plugin:{digits}", text=f"{digits}=", label=max(digits))
