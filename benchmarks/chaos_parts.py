"""What goes wrong in `chaos.py`: a tool and a reward, each for a twentieth of the prompts."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Sequence

from rlcore.api.config import Config
from rlcore.api.types import Sample, Score

CRASHES, HANGS, TOOL_FAILS = range(0, 5), range(5, 10), range(10, 15)
"""Per cent of the prompts, which share nothing."""


def fate(prompt_id: str) -> int:
    """0 to 99, by chance but always the same for a prompt."""
    return zlib.crc32(prompt_id.encode()) % 100


def weigh(prompt_id: str) -> str:
    """Weigh a prompt."""
    if fate(prompt_id) in TOOL_FAILS:
        raise ConnectionError("the scale is broken")
    return str(len(prompt_id))


class ChaosReward:
    """Raises for some prompts, ends its process for others, and never answers for others still."""

    def __init__(self, config: Config) -> None:
        pass

    def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        """1 for every sample that gets a score."""
        found = fate(samples[0].prompt.prompt_id)
        if found in HANGS:
            time.sleep(3600)
        if found in CRASHES and found % 2:
            os._exit(7)
        if found in CRASHES:
            raise RuntimeError("no idea")
        return [Score(value=1.0)] * len(samples)
