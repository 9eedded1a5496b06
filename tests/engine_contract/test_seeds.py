"""Seeds: `local` always honors them, SGLang under deterministic inference."""

import pytest

from rlcore import EngineClient, EngineError, Request, Sampling

PROMPT = (10, 20, 30, 40)
SGLANG_FIELDS = {"enable-deterministic-inference": "true"}
"""What `conftest` starts the server of this module with."""


async def test_a_seed_repeats_its_samples(client: EngineClient) -> None:
    assert (await client.capabilities()).seeds
    first, again, other = [
        [
            one.token_ids
            for one in await client.generate(
                Request(input_ids=PROMPT, sampling=Sampling(max_tokens=12), n=3, seed=seed)
            )
        ]
        for seed in (7, 7, 2**40)
    ]
    assert first == again != other
    assert len(set(first)) == 3


async def test_samples_without_a_seed_differ(client: EngineClient) -> None:
    twice = [
        await client.generate(Request(input_ids=PROMPT, sampling=Sampling(max_tokens=12), n=3))
        for _ in range(2)
    ]
    assert len({one.token_ids for answers in twice for one in answers}) == 6


async def test_min_p_is_refused_where_it_would_end_the_server(client: EngineClient) -> None:
    sampling = Sampling(max_tokens=4, min_p=0.1)
    if (await client.capabilities()).min_p:
        assert await client.generate(Request(input_ids=PROMPT, sampling=sampling))
        return
    with pytest.raises(EngineError, match="use top-p"):
        await client.generate(Request(input_ids=PROMPT, sampling=sampling))
