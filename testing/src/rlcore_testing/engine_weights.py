"""How new weights arrive, in each way that the engine has."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcore.api.errors import DeltaError, EngineError, StaleWeightsError
from rlcore.api.generation import Completion
from rlcore.api.types import Sampling, Span
from rlcore.engines.client import EngineClient
from rlcore.engines.publish import Publisher, verify_by_reload, verify_weights
from rlcore_testing.engine_abilities import Abilities
from rlcore_testing.engine_reference import (
    COLD,
    LONG,
    TOLERANCE,
    References,
    TooLateError,
    gap,
    in_time,
    request_of,
    running,
    start_over,
)
from rlcore_testing.publication import publish
from rlcore_toolkit.publishers.delta_publisher import DeltaPublisher


class WeightsConformance(Abilities):
    """How new weights arrive, in each way that the engine has."""

    async def test_weights_come_between_the_memory_of_weights_and_that_of_keys(
        self, client: EngineClient, references: References, publisher: Publisher
    ) -> None:
        """What a run with `--placement colocate` does around each of its steps."""
        if not (await client.capabilities()).memory:
            pytest.skip("the server gives no memory back")
        for version, model in ((1, references[1]), (2, references[0])):
            await client.flush_cache()
            await client.release_memory()
            await client.resume_memory("weights")
            await publish(publisher, [client], model.state_dict().items(), version, is_idle=True)
            await client.resume_memory("kv_cache", "cuda_graph")
            (answer,) = await client.generate(request_of(Sampling(max_tokens=16)))
            assert answer.spans == (Span(start=0, version=version),)
            assert gap(model, answer) <= TOLERANCE

    async def test_published_weights_are_generated_with(
        self,
        client: EngineClient,
        references: References,
        publisher: Publisher,
        tiny_models: tuple[Path, Path],
    ) -> None:
        await client.generate(request_of(Sampling(max_tokens=4)))  # a prefix in the cache, of the old weights
        for version, model in ((1, references[1]), (2, references[0]), (3, references[1])):
            await publish(publisher, [client], model.state_dict().items(), version)
            assert await client.weight_version() == version
            (answer,) = await client.generate(request_of(Sampling(max_tokens=16)))
            assert answer.spans == (Span(start=0, version=version),)
            assert gap(model, answer) <= TOLERANCE
        published = await client.checksums()
        await client.update_from_disk(str(tiny_models[1]), 4, flush=False)
        assert await client.checksums() == published
        await client.update_from_disk(str(tiny_models[0]), 5, flush=False)
        assert await client.checksums() != published

    @in_time
    async def test_a_publication_amid_a_response_is_told_by_its_spans(
        self,
        client: EngineClient,
        references: References,
        publisher: Publisher,
        tiny_models: tuple[Path, Path],
    ) -> None:
        self.needs("takes_weights_under_way")
        new = partial(publish, publisher, [client], references[1].state_dict().items(), 7)
        answer, place = await _amid(client, new, tiny_models[0])
        assert len(answer.token_ids) == LONG.max_tokens
        assert gap(references[0], answer, t=COLD, part=slice(0, place)) <= TOLERANCE
        assert gap(references[1], answer, t=COLD, part=slice(place, None)) <= TOLERANCE

    @in_time
    async def test_a_publication_in_place_goes_on_with_the_old_cache(
        self,
        client: EngineClient,
        references: References,
        publisher: Publisher,
        tiny_models: tuple[Path, Path],
    ) -> None:
        self.needs("takes_weights_under_way")
        new = partial(publish, publisher, [client], references[1].state_dict().items(), 7, keep_cache=True)
        answer, place = await _amid(client, new, tiny_models[0])
        assert gap(references[0], answer, t=COLD, part=slice(0, place)) <= TOLERANCE
        assert gap(references[1], answer, t=COLD, part=slice(place, None)) > TOLERANCE

    async def test_other_weights_than_the_trainers_do_not_go_unnoticed(
        self, client: EngineClient, references: References, publisher: Publisher
    ) -> None:
        location = await publish(publisher, [client], references[1].state_dict().items(), 2)
        with pytest.raises(StaleWeightsError, match=r"version 2; published was 3"):
            await verify_weights(client, replace(location, version=3))
        if not (await client.capabilities()).tensor_checksums:
            return
        name = "model.layers.1.mlp.up_proj.weight"
        with pytest.raises(StaleWeightsError, match=name):
            await verify_weights(client, replace(location, checksums={**location.checksums, name: "0" * 32}))

    async def test_a_damaged_publication_shows_by_loading_it_again(
        self,
        client: EngineClient,
        publisher: Publisher,
        tiny_models: tuple[Path, Path],
        references: References,
    ) -> None:
        location = await publish(publisher, [client], references[1].state_dict().items(), 4)
        await verify_by_reload(publisher, client, location, tiny_models[0])
        if (await client.capabilities()).tensor_checksums:
            return  # such an engine tells each tensor, and `verify_weights` compares them
        await client.update_from_disk(str(tiny_models[0]), location.version, flush=False)
        await verify_weights(client, location)  # by its version alone
        with pytest.raises(StaleWeightsError, match="differs from version 4"):
            await verify_by_reload(publisher, client, location, tiny_models[0])

    async def test_weights_that_cannot_be_loaded_leave_the_old_ones(
        self, client: EngineClient, references: References, tmp_path: Path
    ) -> None:
        with pytest.raises(EngineError, match="/update_weights_from_disk"):
            await client.update_from_disk(str(tmp_path / "nothing"), 9)
        assert await client.weight_version() == 0
        (answer,) = await client.generate(request_of(Sampling(max_tokens=8)))
        assert gap(references[0], answer) <= TOLERANCE

    async def test_a_whole_version_follows_changes_that_do_not_fit(
        self, client: EngineClient, served: Any, references: References, tiny_models: tuple[Path, Path]
    ) -> None:
        if "delta" not in self.ways:
            pytest.skip(f"`delta` is not among the ways that are checked ({', '.join(self.ways)})")
        changes = DeltaPublisher(root=served.weights_dir / "changes", dtype="fp32", model_path=tiny_models[0])
        model = copy.deepcopy(references[0])
        norm: Any = model.get_submodule("model.norm")
        for version in (1, 2, 3):
            with torch.no_grad():
                norm.weight.mul_(1.25)
            if version == 3:  # as a server that was started anew
                await start_over(client, tiny_models[0])
            location = await publish(changes, [client], model.state_dict().items(), version)
            assert len(location.chain) == version - 1
            (answer,) = await client.generate(request_of(Sampling(max_tokens=16)))
            assert answer.spans == (Span(start=0, version=version),)
            assert gap(model, answer) <= TOLERANCE
        with torch.no_grad():
            norm.weight.mul_(1.25)
        location = await asyncio.to_thread(changes.write, model.state_dict().items(), 4)
        raw = bytearray(Path(location.chain[-1]).read_bytes())
        raw[-3] ^= 1
        Path(location.chain[-1]).write_bytes(raw)
        with pytest.raises(DeltaError, match="is damaged"):
            await changes.load(client, location)
        assert await client.weight_version() == 3
        whole = await asyncio.to_thread(partial(changes.write, model.state_dict().items(), 4, whole=True))
        await changes.load(client, whole)
        (answer,) = await client.generate(request_of(Sampling(max_tokens=16)))
        assert gap(model, answer) <= TOLERANCE
        await start_over(client, tiny_models[0])

    async def test_a_broadcast_is_received_within_an_update_alone(self, client: EngineClient) -> None:
        if "broadcast" not in self.ways:
            pytest.skip(f"`broadcast` is not among the ways that are checked ({', '.join(self.ways)})")
        bucket = {"names": ["model.norm.weight"], "dtypes": ["float32"], "shapes": [[64]]}
        body = {**bucket, "group_name": "nobody", "load_format": "flattened_bucket", "weight_version": "2"}
        with pytest.raises(EngineError, match=r"begin_weight_update"):
            await client.update("/update_weights_from_distributed", {**body, "flush_cache": False})
        await client.health()
        assert await client.weight_version() == 0


async def _amid(
    client: EngineClient, publish_7: Callable[[], Awaitable[object]], first: Path
) -> tuple[Completion, int]:
    """An answer amid which version 7 replaced version 0, the model `first`; its first token of version 7."""
    request = await running(client)
    await publish_7()
    answer = await request.result
    if answer.spans == (Span(start=0, version=0),):
        await start_over(client, first)
        raise TooLateError("the answer had ended before the publication")
    before, after = answer.spans
    assert (before, after.version) == (Span(start=0, version=0), 7)
    return answer, after.start
