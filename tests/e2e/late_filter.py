"""Plugin file: a filter that drops every group of the first step."""

from collections.abc import Iterable

from rlcore import Component, Config, Group, Verdict, hookimpl

FIRST = 8


class Late:
    """Keeps groups from number `FIRST` on."""

    def __init__(self, config: Config) -> None:
        pass

    def judge(self, group: Group) -> Verdict:
        return Verdict(group=group if group.group_id >= FIRST else None, reason="early")


class Broken:
    """A filter with a fault."""

    def __init__(self, config: Config) -> None:
        pass

    def judge(self, group: Group) -> Verdict:
        raise KeyError("nobody")


@hookimpl
def rlcore_filters() -> Iterable[Component]:
    yield Component(name="late", factory=f"{__name__}:Late", summary="drops the first groups")
    yield Component(name="broken", factory=f"{__name__}:Broken", summary="raises")
