"""Plugin file: engines that accept each published adapter, and do not do with it what they should."""

import functools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from rlcore import Component, EngineLaunch, ServerCommand, hookimpl
from rlcore_local.config import LocalConfig
from rlcore_local.engine import LocalEngine
from rlcore_sglang.client import SglangClient
from rlcore_sglang.config import SglangConfig
from rlcore_sglang.engine import SglangEngine

FAULTS = {
    "ignoring": "{}",
    "halving": "{name: one for name, one in weights.items() if '.mlp.' in name}",
    "keeping": "{} if any(one.any() for name, one in self.tensors.items() if 'lora_B' in name) else weights",
}
"""Name → what the server takes of the whole weights that an adapter makes."""
FAULTS["mixing"] = "sound(self, FIRST.pop() if FIRST else FIRST.append(new) or new, held)"
SERVER = """
import sys
from rlcore_local.adapter import HeldAdapter
sound, FIRST = HeldAdapter.merged, []
def broken(self, new, held):
    weights = sound(self, new, held)
    return FAULT
HeldAdapter.merged = broken
from rlcore_local.__main__ import main
sys.exit(main())
"""


class BrokenEngine(LocalEngine):
    """`local` with a fault."""

    def __init__(self, config: LocalConfig, fault: str) -> None:
        super().__init__(config)
        self.fault = fault

    def command(self, launch: EngineLaunch) -> ServerCommand:
        sound = super().command(launch)
        python, path, _, _, *options = sound.argv
        server = SERVER.replace("FAULT", FAULTS[self.fault])
        return replace(sound, argv=(python, path, "-c", server, *options))


class SilentClient(SglangClient):
    """Names no adapter, so that SGLang answers with the base."""

    async def _policy(self, name: str = "") -> dict[str, str]:
        return {}


class SilentEngine(SglangEngine):
    """`sglang` with a client that forgets."""

    client = f"{__name__}:SilentClient"


def __getattr__(name: str) -> Any:
    """The engine of a fault."""
    if name not in FAULTS:
        raise AttributeError(name)
    return functools.partial(BrokenEngine, fault=name)


@hookimpl
def rlcore_engines() -> Iterable[Component]:
    for name in FAULTS:
        yield Component(name=name, factory=f"{__name__}:{name}", summary="broken", config=LocalConfig)
    yield Component(name="silent", factory=f"{__name__}:SilentEngine", summary="broken", config=SglangConfig)
