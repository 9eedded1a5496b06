"""What this distribution registers."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_generators() -> Iterable[Component]:
    yield Component(
        name="session",
        factory="rlcore_session.generator:SessionGenerator",
        config="rlcore_session.config:SessionConfig",
        summary="any agent program, through an OpenAI- and Anthropic-compatible endpoint of its own",
    )
