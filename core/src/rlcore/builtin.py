"""What core itself offers: it registers through the same hooks as everyone else."""

from collections.abc import Iterable

from rlcore.data.config import AddConfig, DigitsConfig, FileConfig
from rlcore.engines.config import LocalConfig, SglangConfig
from rlcore.plugins.hookspecs import hookimpl
from rlcore.plugins.records import Component, Source


@hookimpl
def rlcore_engines() -> Iterable[Component]:
    """The engines."""
    yield Component(
        name="local",
        factory="rlcore.engines.launch:LocalEngine",
        summary="a small server over transformers; needs no GPU",
        config=LocalConfig,
    )
    yield Component(
        name="sglang",
        factory="rlcore.engines.launch:SglangEngine",
        summary="the SGLang server",
        config=SglangConfig,
    )


@hookimpl
def rlcore_sources() -> Iterable[Source]:
    """The prompt file and the procedural tasks."""
    yield Source(
        name="file",
        factory="rlcore.data.files:FileSource",
        summary="prompts from a .jsonl or .parquet file",
        config=FileConfig,
        task=False,
    )
    suggests = {"reward": ["token_match"]}
    yield Source(
        name="copy",
        factory="rlcore.data.tasks:Copy",
        summary="digits in, the same digits out",
        config=DigitsConfig,
        suggests=suggests,
    )
    yield Source(
        name="reverse",
        factory="rlcore.data.tasks:Reverse",
        summary="digits in, reversed digits out",
        config=DigitsConfig,
        suggests=suggests,
    )
    yield Source(
        name="sort",
        factory="rlcore.data.tasks:Sort",
        summary="digits in, sorted digits out",
        config=DigitsConfig,
        suggests=suggests,
    )
    yield Source(
        name="add",
        factory="rlcore.data.tasks:Add",
        summary="two numbers in, their sum out",
        config=AddConfig,
        suggests=suggests,
    )
