"""The model hook `my_plugin`."""

from rlcore import ConfigError, ModelHook, ModelView

from rlcore_my_plugin.config import MyPluginConfig

FLAG = "--model-hook.my-plugin.word"


class MyPlugin(ModelHook):
    """Takes parameters out of the training. Each train worker builds its own."""

    def __init__(self, config: MyPluginConfig) -> None:
        self._word = config.word

    def built(self, model: ModelView) -> None:
        """Raises `ConfigError` where no parameter of the whole model has the word in its name."""
        if not any(self._word in name for name in model.names):
            raise ConfigError(f"{FLAG}: found {self._word!r}, which is in the name of no parameter.")
        for name, parameter in model.parameters.items():
            if self._word in name:
                parameter.requires_grad_(False)
