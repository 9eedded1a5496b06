"""What this package offers."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_rewards() -> Iterable[Component]:
    """The reward."""
    yield Component(
        name="code",
        factory="rlcore_code.reward:Code",
        summary="whether the program in the response passes the tests of the label, in a sandbox",
        config="rlcore_code.config:CodeConfig",
        suggests={"reward_timeout": 120.0},
    )
