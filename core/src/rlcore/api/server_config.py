"""How a setting names a server: by a URL, or as `frozen:NAME`, a model that the run itself serves."""

from typing import Self

from pydantic import Field, PrivateAttr

from rlcore.api.config import Config

FROZEN = "frozen:"
API = "/v1"
"""Where a server has OpenAI's protocol, behind its address."""


def frozen_name(url: str) -> str | None:
    """NAME of `frozen:NAME`; None of a URL."""
    return url.removeprefix(FROZEN) if url.startswith(FROZEN) else None


class AsksServer(Config):
    """Base for the config of a reward that asks a server, which may be a frozen model of the run.

    Once the run serves its frozen models, `frozen:NAME` is a URL too, and `held_token` the token for it,
    which no dump of the config shows.
    """

    url: str = Field(
        pattern=r"^(https?://\S+|frozen:\w+)$",
        description="URL of the server, or frozen:NAME of a model of --frozen",
    )
    _held_token: str = PrivateAttr("")

    @property
    def held_token(self) -> str:
        """The bearer token of the run's own server; empty: it is no server of the run's, or not there yet."""
        return self._held_token

    def served(self, address: str, token: str, model_path: str) -> Self:
        """The same, of the run's own server at `address`, which serves the model of `model_path`."""
        config = self.model_copy(update=self._of_server(address, model_path))
        config._held_token = token
        return config

    def _of_server(self, address: str, model_path: str) -> dict[str, str]:
        """The settings that a server of the run gives."""
        return {"url": address}


class AsksChat(AsksServer):
    """Settings of a reward that asks a language model by OpenAI's chat completions: `url` ends in `/v1`."""

    def _of_server(self, address: str, model_path: str) -> dict[str, str]:
        return {"url": address + API}


class AsksScores(AsksServer):
    """Settings of a reward that asks a sequence classifier, a reward model, by `/classify` below `url`.

    The text that is scored is made here, with the classifier's own tokenizer: of a frozen model it is that of
    its directory.
    """

    tokenizer: str = Field(
        "", description="directory of the model's tokenizer, whose chat template makes the text, for a URL"
    )
    template: str = Field(
        "",
        description="in place of the chat template: the text to score; {prompt} and {response} are filled in",
    )
    label: int | None = Field(
        None, ge=0, description="index of the score, where the model has several; empty: it has one"
    )

    def _of_server(self, address: str, model_path: str) -> dict[str, str]:
        return {"url": address, "tokenizer": model_path}
