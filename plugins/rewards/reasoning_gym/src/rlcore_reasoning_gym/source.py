"""The prompt source: entries of the chosen datasets."""

from collections.abc import Iterator

from rlcore import DataError, Messages, Prompt, Prompts, content_hash, content_share
from rlcore_reasoning_gym.config import ReasoningGymConfig
from rlcore_reasoning_gym.entries import KEY, dataset


class ReasoningGym:
    """Every entry is one prompt; its label is the dataset's own answer, which need not be the only right one.

    A held-out set for each dataset, of its name. Whether a prompt is held out depends on its text alone.
    """

    def __init__(self, config: ReasoningGymConfig) -> None:
        self._config = config

    def prompts(self) -> Prompts:
        """Both sides. Raises `DataError` for a dataset that there is not, or that refuses its settings."""
        names = self._config.datasets
        strangers = [name for name in self._config.settings if name not in names]
        if strangers or len(set(names)) < len(names):
            raise DataError(
                f"--source.settings and --source.datasets: found {', '.join([*strangers, *names])}, expected "
                "each dataset once, and settings of those datasets only."
            )
        train: list[Prompt] = []
        held_out: dict[str, list[Prompt]] = {name: [] for name in names}
        for name in names:
            for prompt in self._entries(name):
                chosen = content_share(content_hash(prompt.text)) < self._config.held_out
                (held_out[name] if chosen else train).append(prompt)
        return Prompts(train=train, held_out={name: rows for name, rows in held_out.items() if rows})

    def _entries(self, name: str) -> Iterator[Prompt]:
        config = self._config
        settings = config.settings.get(name, {})
        entries = dataset(name, seed=config.dataset_seed, size=config.size, settings=settings)
        for index in range(config.size):
            entry = entries[index]
            where = {"dataset": name, "seed": config.dataset_seed, "size": config.size, "settings": settings}
            yield Prompt(
                prompt_id=f"{name}:{index}",
                text=self._text(str(entry["question"]) + config.suffix),
                label=None if entry["answer"] is None else str(entry["answer"]),
                metadata={KEY: {**where, "index": index}},
            )

    def _text(self, question: str) -> str | Messages:
        if not self._config.chat:
            return question
        system = [{"role": "system", "content": self._config.system}] if self._config.system else []
        return (*system, {"role": "user", "content": question})
