"""The real SGLang keeps the contract of engines."""

import os

import pytest

from rlcore import EngineClient, Part
from rlcore_sglang.config import SglangConfig
from rlcore_testing.engines import EngineConformance

PYTHON = "RLCORE_SGLANG_PYTHON"


@pytest.mark.sglang
class TestSglang(EngineConformance):
    ways = ("disk", "tensor", "delta", "broadcast")

    def engine(self) -> Part:
        assert PYTHON in os.environ, (
            f"{PYTHON} must name the interpreter that has sglang (`make test-sglang`)"
        )
        config = SglangConfig(python=os.environ[PYTHON], start_limit_s=600.0, bucket_mb=1)
        return Part(name="sglang", factory="rlcore_sglang.engine:SglangEngine", config=config)

    async def test_it_gives_memory_back(self, client: EngineClient) -> None:
        assert (await client.capabilities()).memory
