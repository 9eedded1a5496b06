"""`local` keeps the contract of engines."""

from dataclasses import replace

import pytest

from rlcore import EngineClient, Part
from rlcore_local.testing import LOCAL
from rlcore_testing.engines import EngineConformance


@pytest.mark.usefixtures("forked_servers")
class TestLocal(EngineConformance):
    ways = ("disk", "shared_memory", "delta", "broadcast")

    def engine(self) -> Part:
        return replace(LOCAL, config=LOCAL.config.model_copy(update={"max_batch": 32}))

    async def test_it_gives_memory_back_and_tells_each_tensor(self, client: EngineClient) -> None:
        can = await client.capabilities()
        assert can.memory
        assert can.tensor_checksums
