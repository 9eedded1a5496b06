"""What this package offers."""

from collections.abc import Iterable
from typing import ClassVar

from rlcore import Component, EngineConfig, hookimpl


class OpenAiConfig(EngineConfig):
    """`--engine.*`; `--openai.<field>` are the server's own."""

    table: ClassVar[str] = "openai"
    fields_of: ClassVar[str] = "the server of OpenAI's completions"


@hookimpl
def rlcore_engines() -> Iterable[Component]:
    """The engine, and one whose server gives no log-probs."""
    yield Component(
        name="openai",
        factory="openai_engine.engine:OpenAiEngine",
        summary="OpenAI's /v1/completions over transformers",
        config=OpenAiConfig,
    )
    yield Component(
        name="openai_bare",
        factory="openai_engine.engine:BareEngine",
        summary="the same without log-probs",
        config=OpenAiConfig,
    )
