"""Code that holds up the event loop is told by its place."""

import asyncio
import time

import pytest

from rlcore_machine import stalls
from rlcore_machine.stalls import stalls_told


def test_the_place_of_what_holds_up_the_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "LOOK_S", 0.02)
    told: list[tuple[float, str]] = []

    async def blocks() -> None:
        time.sleep(0.8)

    async def main() -> None:
        with stalls_told(lambda seconds, place: told.append((seconds, place)), 0.1):
            await asyncio.sleep(0.3)  # waits, and holds up nothing
            assert not told
            await blocks()

    asyncio.run(main())
    ((seconds, place),) = told
    assert seconds == 0.1
    assert place.startswith(f"{__file__}, line ")
    assert place.endswith(", in blocks")
