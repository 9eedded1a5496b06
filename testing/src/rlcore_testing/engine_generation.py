"""What every engine does with a request."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from rlcore.api.errors import EngineError
from rlcore.api.generation import Request
from rlcore.api.types import Sampling, Span
from rlcore.engines.client import EngineClient
from rlcore_machine.tasks import together
from rlcore_testing.engine_abilities import Abilities
from rlcore_testing.engine_reference import (
    COLD,
    CONTEXT,
    END,
    PROMPT,
    TOLERANCE,
    VOCAB,
    References,
    gap,
    log_probs,
    request_of,
)


class GenerationConformance(Abilities):
    """What every engine does with a request."""

    async def test_health_and_info(self, client: EngineClient) -> None:
        await client.health()
        info = await client.server_info()
        assert info["version"]
        assert await client.weight_version() == 0
        assert (await client.capabilities()).version == info["version"]

    async def test_a_token_is_required(self, client: EngineClient) -> None:
        for token in ("wrong", None):
            async with EngineClient(client.url, token) as stranger:
                with pytest.raises(EngineError, match=r"/server_info with HTTP 401"):
                    await stranger.server_info()
                with pytest.raises(EngineError, match="401"):
                    await stranger.generate(request_of(Sampling(max_tokens=4)))

    async def test_log_probs_are_those_of_transformers(
        self, client: EngineClient, references: References, tiny_models: tuple[Path, Path]
    ) -> None:
        (answer,) = await client.generate(request_of(Sampling(max_tokens=48, temperature=COLD)))
        assert len(answer.token_ids) == len(answer.log_probs) == 48
        assert answer.finish_reason == "length"
        assert answer.prompt_tokens == len(PROMPT)
        assert answer.spans == (Span(start=0, version=0),)
        assert gap(references[0], answer, t=COLD) <= TOLERANCE
        tokenizer = AutoTokenizer.from_pretrained(tiny_models[0])
        assert answer.text == tokenizer.decode(list(answer.token_ids), skip_special_tokens=True)

    @pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
    async def test_log_probs_include_the_temperature(
        self, client: EngineClient, references: References, temperature: float
    ) -> None:
        for answer in await client.generate(
            request_of(Sampling(max_tokens=20, temperature=temperature), n=4)
        ):
            assert gap(references[0], answer, t=temperature) <= TOLERANCE

    async def test_greedy_takes_the_likeliest_token(
        self, client: EngineClient, references: References
    ) -> None:
        for sampling in (Sampling(max_tokens=24, temperature=0.0), Sampling(max_tokens=24, top_k=1)):
            (answer,) = await client.generate(request_of(sampling))
            assert (
                list(answer.token_ids)
                == log_probs(references[0], PROMPT, answer.token_ids).argmax(-1).tolist()
            )

    async def test_filters_keep_the_likely_tokens(self, client: EngineClient, references: References) -> None:
        for sampling in (
            Sampling(max_tokens=16, top_k=5),
            Sampling(max_tokens=16, top_p=0.5),
            Sampling(max_tokens=16, min_p=0.2),
        ):
            for answer in await client.generate(request_of(sampling, n=4)):
                probs = log_probs(references[0], PROMPT, answer.token_ids).exp()
                drawn = probs.gather(1, torch.tensor(answer.token_ids)[:, None])
                likelier = torch.where(probs > drawn * (1 + TOLERANCE), probs, 0.0)
                assert not sampling.top_k or (likelier > 0).sum(1).max() < sampling.top_k
                assert likelier.sum(1).max() <= sampling.top_p + TOLERANCE
                assert (drawn[:, 0] / probs.max(1).values).min() >= sampling.min_p - TOLERANCE

    async def test_n_samples_of_one_prompt_differ(self, client: EngineClient, references: References) -> None:
        answers = await client.generate(request_of(Sampling(max_tokens=16), n=6, seed=5))
        assert len({answer.token_ids for answer in answers}) == 6
        assert all(gap(references[0], answer) <= TOLERANCE for answer in answers)

    async def test_many_requests_at_once_come_back_in_order(
        self, client: EngineClient, references: References
    ) -> None:
        prompts = [tuple(range(3 + i, 10 + 2 * i)) for i in range(24)]
        sampling = Sampling(max_tokens=8, temperature=0.0)
        answers = await together(
            client.generate(Request(input_ids=ids, sampling=sampling, n=2)) for ids in prompts
        )
        for ids, pair in zip(prompts, answers, strict=True):
            assert [answer.prompt_tokens for answer in pair] == [len(ids)] * 2
            for answer in pair:
                assert (
                    list(answer.token_ids)
                    == log_probs(references[0], ids, answer.token_ids).argmax(-1).tolist()
                )

    async def test_scores_of_given_tokens(self, client: EngineClient, references: References) -> None:
        self.needs("serves_frozen")
        ids = (*PROMPT, 300, 200, 100)
        wanted = log_probs(references[0], ids[:1], ids[1:]).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
        scores = torch.tensor(await client.score(ids))
        assert scores.shape == wanted.shape
        assert float((scores - wanted).abs().max()) <= TOLERANCE
        for start in (len(PROMPT), len(ids) - 1):
            late = torch.tensor(await client.score(ids, start=start))
            assert late.shape == (len(ids) - start,)
            assert float((late - wanted[start - 1 :]).abs().max()) <= TOLERANCE

    async def test_the_servers_tokenizer_is_the_models(
        self, client: EngineClient, tiny_models: tuple[Path, Path]
    ) -> None:
        self.needs("serves_frozen")
        tokenizer = AutoTokenizer.from_pretrained(tiny_models[0])
        for text in ("1 2 3", f"{tokenizer.eos_token}4 + 5"):
            assert list(await client.tokenize(text)) == tokenizer.encode(text)

    async def test_the_end_token_ends_and_is_kept(self, client: EngineClient, references: References) -> None:
        hot = 3.0
        answers = await client.generate(request_of(Sampling(max_tokens=200, temperature=hot), n=32))
        stopped = [answer for answer in answers if answer.finish_reason == "stop"]
        assert stopped
        assert {answer.finish_reason for answer in answers} <= {"stop", "length"}
        for answer in answers:
            assert (answer.token_ids[-1] == END) == (answer.finish_reason == "stop")
            assert END not in answer.token_ids[:-1]
            assert len(answer.log_probs) == len(answer.token_ids)
        assert gap(references[0], stopped[0], t=hot) <= TOLERANCE

    async def test_stop_token_ids_end_and_are_kept(self, client: EngineClient) -> None:
        stops = tuple(range(100, 300))
        answers = await client.generate(
            request_of(Sampling(max_tokens=100, temperature=3.0, stop_token_ids=stops), n=8)
        )
        for answer in answers:
            assert answer.finish_reason == "stop"
            assert answer.token_ids[-1] in {*stops, END}
            assert not set(answer.token_ids[:-1]) & {*stops, END}

    async def test_stop_strings_end_and_their_tokens_are_kept(
        self, client: EngineClient, tiny_models: tuple[Path, Path]
    ) -> None:
        tokenizer = AutoTokenizer.from_pretrained(tiny_models[0])
        stop = "1"
        answers = await client.generate(
            request_of(Sampling(max_tokens=300, temperature=3.0, stop=(stop,)), n=8)
        )
        ended = [answer for answer in answers if answer.token_ids[-1] != END]
        assert ended
        for answer in ended:
            assert answer.finish_reason == "stop"
            assert stop in answer.text
            assert stop not in tokenizer.decode(list(answer.token_ids[:-1]))

    async def test_a_prompt_that_does_not_fit_is_refused(self, client: EngineClient) -> None:
        with pytest.raises(EngineError, match=rf"/generate with HTTP 400.*{CONTEXT}"):
            await client.generate(Request(input_ids=(5,) * (CONTEXT + 10), sampling=Sampling(max_tokens=4)))
        with pytest.raises(EngineError, match=rf"/generate with HTTP 400.*{CONTEXT}"):
            await client.generate(Request(input_ids=(5,) * (CONTEXT - 10), sampling=Sampling(max_tokens=20)))
        await client.health()

    async def test_tokens_outside_the_vocabulary_are_refused(self, client: EngineClient) -> None:
        with pytest.raises(EngineError, match=f"vocabulary has {VOCAB} tokens"):
            await client.generate(Request(input_ids=(VOCAB,), sampling=Sampling(max_tokens=4)))
        await client.health()

    async def test_nonsense_is_refused(self, client: EngineClient) -> None:
        with pytest.raises(EngineError, match="no tokens"):
            await client.generate(Request(input_ids=(), sampling=Sampling(max_tokens=4)))
        with pytest.raises(EngineError, match="/generate with HTTP 400"):
            await client.generate(request_of(Sampling(max_tokens=4, top_p=3.0)))
        await client.health()
