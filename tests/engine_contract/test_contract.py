"""What every engine does, over the same client: run against `local` always, and against the real SGLang.

No test depends on another. Each starts with an idle server that holds the first model, and leaves it so.
"""

from __future__ import annotations

import asyncio
import copy
import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from start_over import start_over
from torch import Tensor
from transformers import AutoTokenizer, Qwen3ForCausalLM

from rlcore.api.errors import ConfigError, DeltaError, EngineError, StaleWeightsError
from rlcore.api.generation import Completion
from rlcore.api.inputs import Input
from rlcore.api.run_config import RunConfig
from rlcore.api.tokens import load_tokenizer
from rlcore.api.types import Group, Prompt, Sample, Sampling, Span
from rlcore.engines.bucket import Bucket
from rlcore.engines.client import EngineClient, PauseMode, Request
from rlcore.engines.delta_publish import DeltaPublisher
from rlcore.engines.publish import Publisher, publish, verify, verify_by_reload
from rlcore.rollout.teacher import TOKEN, TeacherEngine, check_vocabulary, client_of
from rlcore_remote.client import Client
from rlcore_remote.config import JudgeConfig

PROMPT = (10, 20, 30, 40, 50, 60, 70)
END, VOCAB, CONTEXT = 2, 512, 1024
TOLERANCE = 1e-4
COLD = 0.3
LONG = Sampling(max_tokens=900, temperature=COLD)
"""A response that lasts long enough to be disturbed: so cold, it meets no end token."""

References = tuple[Qwen3ForCausalLM, Qwen3ForCausalLM]


@torch.no_grad()
def log_probs(
    model: Qwen3ForCausalLM, prompt: Sequence[int], response: Sequence[int], t: float = 1.0
) -> Tensor:
    """Of the distributions that the response was drawn from, [tokens, vocabulary]."""
    logits: Tensor = model(torch.tensor([[*prompt, *response]])).logits[0]
    return (logits[len(prompt) - 1 : -1] / t).log_softmax(-1)


def gap(model: Qwen3ForCausalLM, one: Completion, *, t: float = 1.0, part: slice = slice(None)) -> float:
    """The largest difference between the engine's log-probs and transformers', over a part of the tokens."""
    wanted = log_probs(model, PROMPT, one.token_ids, t).gather(1, torch.tensor(one.token_ids)[:, None])[:, 0]
    return float((wanted - torch.tensor(one.log_probs))[part].abs().max())


class Running:
    """A long request that is under way."""

    def __init__(self, client: EngineClient, rid: str, sampling: Sampling = LONG) -> None:
        self._begun = asyncio.Event()
        self.result = asyncio.create_task(self._follow(client, rid, sampling))

    async def _follow(self, client: EngineClient, rid: str, sampling: Sampling) -> Completion:
        states: list[Completion] = []
        async for state in client.stream(PROMPT, sampling, rid=rid):
            states.append(state)
            self._begun.set()
        return states[-1]

    async def begun(self) -> None:
        """Returns once it has sampled a token; fails where it failed."""
        waiting = asyncio.create_task(self._begun.wait())
        await asyncio.wait({self.result, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        assert not self.result.done(), self.result.result()


async def run(client: EngineClient, rid: str) -> Running:
    one = Running(client, rid)
    await one.begun()
    return one


# --- what it says of itself ----------------------------------------------------------------------------


async def test_health_and_info(client: EngineClient) -> None:
    await client.health()
    info = await client.server_info()
    assert info["version"]
    assert await client.weight_version() == 0
    assert (await client.capabilities()).version == info["version"]


async def test_a_token_is_required(client: EngineClient) -> None:
    for token in ("wrong", None):
        async with EngineClient(client.url, token) as stranger:
            with pytest.raises(EngineError, match=r"/server_info with HTTP 401"):
                await stranger.server_info()
            with pytest.raises(EngineError, match="401"):
                await stranger.generate(PROMPT, Sampling(max_tokens=4))


# --- generation ----------------------------------------------------------------------------------------


async def test_log_probs_are_those_of_transformers(
    client: EngineClient, references: References, tiny_models: tuple[Path, Path]
) -> None:
    (one,) = await client.generate(PROMPT, Sampling(max_tokens=48, temperature=COLD))
    assert len(one.token_ids) == len(one.log_probs) == 48
    assert one.finish_reason == "length"
    assert one.prompt_tokens == len(PROMPT)
    assert one.spans == (Span(start=0, version=0),)
    assert gap(references[0], one, t=COLD) <= TOLERANCE
    tokenizer = AutoTokenizer.from_pretrained(tiny_models[0])
    assert one.text == tokenizer.decode(list(one.token_ids), skip_special_tokens=True)


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
async def test_log_probs_include_the_temperature(
    client: EngineClient, references: References, temperature: float
) -> None:
    for one in await client.generate(PROMPT, Sampling(max_tokens=20, temperature=temperature), n=4):
        assert gap(references[0], one, t=temperature) <= TOLERANCE


async def test_greedy_takes_the_likeliest_token(client: EngineClient, references: References) -> None:
    for sampling in (Sampling(max_tokens=24, temperature=0.0), Sampling(max_tokens=24, top_k=1)):
        (one,) = await client.generate(PROMPT, sampling)
        assert list(one.token_ids) == log_probs(references[0], PROMPT, one.token_ids).argmax(-1).tolist()


async def test_filters_keep_the_likely_tokens(client: EngineClient, references: References) -> None:
    for sampling in (
        Sampling(max_tokens=16, top_k=5),
        Sampling(max_tokens=16, top_p=0.5),
        Sampling(max_tokens=16, min_p=0.2),
    ):
        for one in await client.generate(PROMPT, sampling, n=4):
            found = log_probs(references[0], PROMPT, one.token_ids).exp()
            drawn = found.gather(1, torch.tensor(one.token_ids)[:, None])
            likelier = torch.where(found > drawn * (1 + TOLERANCE), found, 0.0)
            assert not sampling.top_k or (likelier > 0).sum(1).max() < sampling.top_k
            assert likelier.sum(1).max() <= sampling.top_p + TOLERANCE
            assert (drawn[:, 0] / found.max(1).values).min() >= sampling.min_p - TOLERANCE


async def test_n_samples_of_one_prompt_differ(client: EngineClient, references: References) -> None:
    answers = await client.generate(PROMPT, Sampling(max_tokens=16), n=6, seed=5)
    assert len({one.token_ids for one in answers}) == 6
    assert max(gap(references[0], one) for one in answers) <= TOLERANCE


async def test_many_requests_at_once_come_back_in_order(client: EngineClient, references: References) -> None:
    prompts = [tuple(range(3 + i, 10 + 2 * i)) for i in range(24)]
    sampling = Sampling(max_tokens=8, temperature=0.0)
    answers = await client.generate_many([Request(input_ids=ids, sampling=sampling, n=2) for ids in prompts])
    for ids, pair in zip(prompts, answers, strict=True):
        assert [one.prompt_tokens for one in pair] == [len(ids)] * 2
        for one in pair:
            assert list(one.token_ids) == log_probs(references[0], ids, one.token_ids).argmax(-1).tolist()


async def test_scores_of_given_tokens(client: EngineClient, references: References) -> None:
    ids = (*PROMPT, 300, 200, 100)
    wanted = log_probs(references[0], ids[:1], ids[1:]).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    found = torch.tensor(await client.score(ids))
    assert found.shape == wanted.shape
    assert float((found - wanted).abs().max()) <= TOLERANCE
    for start in (len(PROMPT), len(ids) - 1):
        late = torch.tensor(await client.score(ids, start=start))
        assert late.shape == (len(ids) - start,)
        assert float((late - wanted[start - 1 :]).abs().max()) <= TOLERANCE


async def test_the_servers_tokenizer_is_the_models(
    client: EngineClient, tiny_models: tuple[Path, Path]
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_models[0])
    for text in ("1 2 3", f"{tokenizer.eos_token}4 + 5"):
        assert list(await client.tokenize(text)) == tokenizer.encode(text)


async def test_it_teaches(
    client: EngineClient,
    references: References,
    tiny_models: tuple[Path, Path],
    served: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine as the teacher of a run: log-probs of the responses of whole groups, and its vocabulary."""
    monkeypatch.setenv(TOKEN, served.token)
    run = RunConfig.of(teacher_url=client.url)
    responses: tuple[tuple[int, ...], ...] = ((11, 12, 13), (), (300, 5))
    samples = tuple(
        Sample(
            prompt=Prompt(prompt_id="p", text=""),
            prompt_ids=PROMPT,
            group_id=0,
            index=index,
            rollout_id=f"0.{index}",
            response_ids=ids,
            extras={"kept": 1},
        )
        for index, ids in enumerate(responses)
    )
    groups = [
        Group(group_id=number, prompt=samples[0].prompt, samples=part)
        for number, part in enumerate((samples[:1], samples[1:]))
    ]
    async with client_of(run) as teacher:
        scored = await TeacherEngine(teacher).score(groups)
    assert [len(group.samples) for group in scored] == [1, 2]
    for sample in (one for group in scored for one in group.samples):
        wanted = log_probs(references[0], PROMPT, sample.response_ids)
        wanted = wanted.gather(1, torch.tensor(sample.response_ids, dtype=torch.int64)[:, None])[:, 0]
        found = torch.tensor(sample.extras[Input.TEACHER_LOG_PROBS])
        torch.testing.assert_close(found, wanted, atol=TOLERANCE, rtol=0)
        assert sample.extras["kept"] == 1
    mine = load_tokenizer(tiny_models[0])
    await asyncio.to_thread(check_vocabulary, run, mine)
    other: Any = AutoTokenizer.from_pretrained(tiny_models[0])
    other.add_tokens(["<extra>"], special_tokens=True)
    with pytest.raises(ConfigError, match=r"its tokenizer makes .*<extra>.*the same vocabulary"):
        await asyncio.to_thread(check_vocabulary, run, other)
    monkeypatch.setenv(TOKEN, "wrong")
    with pytest.raises(ConfigError, match=r"--teacher-url .*401"):
        await asyncio.to_thread(check_vocabulary, run, mine)


async def test_it_chats(client: EngineClient, served: Any, tiny_models: tuple[Path, Path]) -> None:
    """As the reward `judge` asks it: the model's template, then what it generates for any other."""
    config = JudgeConfig(url="frozen:judge").served(served.url, served.token, "")
    chat = [{"role": "user", "content": "1 + 2 = "}]
    body = {"model": "default", "messages": chat, "temperature": 0, "max_tokens": 8}
    (answer,) = await asyncio.to_thread(Client(config, "/chat/completions").ask, [body])
    prompt: Any = AutoTokenizer.from_pretrained(tiny_models[0]).apply_chat_template(
        chat, add_generation_prompt=True, return_dict=False
    )
    (same,) = await client.generate(prompt, Sampling(max_tokens=8, temperature=0))
    (choice,) = answer["choices"]
    assert choice["message"]["content"] == same.text
    assert choice["finish_reason"] == same.finish_reason == "length"
    assert answer["usage"]["completion_tokens"] == 8


# --- how it ends ---------------------------------------------------------------------------------------


async def test_the_end_token_ends_and_is_kept(client: EngineClient, references: References) -> None:
    hot = 3.0
    answers = await client.generate(PROMPT, Sampling(max_tokens=200, temperature=hot), n=32)
    stopped = [one for one in answers if one.finish_reason == "stop"]
    assert stopped
    assert {one.finish_reason for one in answers} <= {"stop", "length"}
    for one in answers:
        assert (one.token_ids[-1] == END) == (one.finish_reason == "stop")
        assert END not in one.token_ids[:-1]
        assert len(one.log_probs) == len(one.token_ids)
    assert gap(references[0], stopped[0], t=hot) <= TOLERANCE


async def test_stop_token_ids_end_and_are_kept(client: EngineClient) -> None:
    stops = tuple(range(100, 300))
    answers = await client.generate(
        PROMPT, Sampling(max_tokens=100, temperature=3.0, stop_token_ids=stops), n=8
    )
    for one in answers:
        assert one.finish_reason == "stop"
        assert one.token_ids[-1] in {*stops, END}
        assert not set(one.token_ids[:-1]) & {*stops, END}


async def test_stop_strings_end_and_their_tokens_are_kept(
    client: EngineClient, tiny_models: tuple[Path, Path]
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_models[0])
    stop = "1"
    answers = await client.generate(PROMPT, Sampling(max_tokens=300, temperature=3.0, stop=(stop,)), n=8)
    ended = [one for one in answers if one.token_ids[-1] != END]
    assert ended
    for one in ended:
        assert one.finish_reason == "stop"
        assert stop not in one.text
        assert stop in tokenizer.decode(list(one.token_ids))
        assert stop not in tokenizer.decode(list(one.token_ids[:-1]))


async def test_a_prompt_that_does_not_fit_is_refused(client: EngineClient) -> None:
    with pytest.raises(EngineError, match=rf"/generate with HTTP 400.*{CONTEXT}"):
        await client.generate([5] * (CONTEXT + 10), Sampling(max_tokens=4))
    with pytest.raises(EngineError, match=rf"/generate with HTTP 400.*{CONTEXT}"):
        await client.generate([5] * (CONTEXT - 10), Sampling(max_tokens=20))
    await client.health()


async def test_tokens_outside_the_vocabulary_are_refused(client: EngineClient) -> None:
    with pytest.raises(EngineError, match=f"vocabulary has {VOCAB} tokens"):
        await client.generate([VOCAB], Sampling(max_tokens=4))
    await client.health()


async def test_nonsense_is_refused(client: EngineClient) -> None:
    with pytest.raises(EngineError, match="no tokens"):
        await client.generate((), Sampling(max_tokens=4))
    with pytest.raises(EngineError, match="/generate with HTTP 400"):
        await client.generate(PROMPT, Sampling(max_tokens=4, top_p=3.0))
    await client.health()


# --- control -------------------------------------------------------------------------------------------


async def test_a_stream_grows_to_the_answer(client: EngineClient, references: References) -> None:
    states = [one async for one in client.stream(PROMPT, Sampling(max_tokens=40, temperature=COLD))]
    assert len(states) > 1
    for before, after in pairwise(states):
        assert after.token_ids[: len(before.token_ids)] == before.token_ids
        assert before.finish_reason == "pending"
    assert states[-1].finish_reason == "length"
    assert len(states[-1].token_ids) == 40
    assert gap(references[0], states[-1], t=COLD) <= TOLERANCE


async def test_abort_returns_what_was_sampled(client: EngineClient, references: References) -> None:
    kept, ended = await run(client, "request-10"), await run(client, "request-1")
    await client.abort("request-1")
    one = await ended.result
    assert one.finish_reason == "abort"
    assert 0 < len(one.token_ids) == len(one.log_probs) < LONG.max_tokens
    assert gap(references[0], one, t=COLD) <= TOLERANCE
    assert not kept.result.done()
    await client.abort()
    assert (await kept.result).finish_reason == "abort"


async def test_abort_ends_all_samples_of_a_request(client: EngineClient) -> None:
    task = asyncio.create_task(client.generate(PROMPT, LONG, n=3, rid="three"))
    async with asyncio.timeout(60.0):
        while not task.done():
            await client.abort("three")
            await asyncio.sleep(0.02)
    assert [one.finish_reason for one in await task] == ["abort"] * 3


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_pause_holds_and_resume_goes_on(
    client: EngineClient, references: References, mode: PauseMode
) -> None:
    one = await run(client, f"paused-{mode}")
    await client.pause(mode)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(one.result), 1.0)
    await client.resume()
    answer = await one.result
    assert answer.finish_reason == "length"
    assert len(answer.token_ids) == LONG.max_tokens
    assert gap(references[0], answer, t=COLD) <= TOLERANCE


async def test_pause_by_abort_ends_the_requests(client: EngineClient) -> None:
    one = await run(client, "ended")
    await client.pause("abort")
    assert (await one.result).finish_reason == "abort"
    await client.resume()
    await client.generate(PROMPT, Sampling(max_tokens=2))


async def test_memory_is_released_and_resumed(client: EngineClient, references: References) -> None:
    assert (await client.capabilities()).memory
    await client.release_memory()
    await client.resume_memory()
    (one,) = await client.generate(PROMPT, Sampling(max_tokens=16))
    assert gap(references[0], one) <= TOLERANCE


async def test_weights_come_between_the_memory_of_weights_and_that_of_keys(
    client: EngineClient, references: References, publisher: Publisher
) -> None:
    """What a run with `--placement colocate` does around each of its steps."""
    for version, model in ((1, references[1]), (2, references[0])):
        await client.release_memory()
        await client.resume_memory("weights")
        await publish(publisher, [client], model.state_dict().items(), version)
        await client.resume_memory("kv_cache", "cuda_graph")
        (one,) = await client.generate(PROMPT, Sampling(max_tokens=16))
        assert one.spans == (Span(start=0, version=version),)
        assert gap(model, one) <= TOLERANCE


# --- weights -------------------------------------------------------------------------------------------


async def test_published_weights_are_generated_with(
    client: EngineClient, references: References, publisher: Publisher, tiny_models: tuple[Path, Path]
) -> None:
    await client.generate(PROMPT, Sampling(max_tokens=4))  # a prefix in the cache, of the old weights
    for version, model in ((1, references[1]), (2, references[0]), (3, references[1])):
        await publish(publisher, [client], model.state_dict().items(), version)
        assert await client.weight_version() == version
        (one,) = await client.generate(PROMPT, Sampling(max_tokens=16))
        assert one.spans == (Span(start=0, version=version),)
        assert gap(model, one) <= TOLERANCE
    published = await client.checksums()
    await client.update_from_disk(str(tiny_models[1]), 4, flush=False)
    assert await client.checksums() == published
    await client.update_from_disk(str(tiny_models[0]), 5, flush=False)
    assert await client.checksums() != published


async def test_a_publication_amid_a_response_is_told_by_its_spans(
    client: EngineClient, references: References, publisher: Publisher
) -> None:
    running = await run(client, f"amid-{uuid.uuid4().hex}")  # no late abort of another test's request hits it
    await publish(publisher, [client], references[1].state_dict().items(), 7)
    one = await running.result
    first, second = one.spans
    assert (first, second.version) == (Span(start=0, version=0), 7)
    assert len(one.token_ids) == LONG.max_tokens
    assert gap(references[0], one, t=COLD, part=slice(0, second.start)) <= TOLERANCE
    assert gap(references[1], one, t=COLD, part=slice(second.start, None)) <= TOLERANCE


async def test_a_publication_in_place_goes_on_with_the_old_cache(
    client: EngineClient, references: References, publisher: Publisher
) -> None:
    running = await run(client, f"in-place-{uuid.uuid4().hex}")
    await publish(publisher, [client], references[1].state_dict().items(), 7, keep_cache=True)
    one = await running.result
    first, second = one.spans
    assert (first, second.version) == (Span(start=0, version=0), 7)
    assert gap(references[0], one, t=COLD, part=slice(0, second.start)) <= TOLERANCE
    assert gap(references[1], one, t=COLD, part=slice(second.start, None)) > TOLERANCE


async def test_other_weights_than_the_trainers_do_not_go_unnoticed(
    client: EngineClient, references: References, publisher: Publisher
) -> None:
    location = await publish(publisher, [client], references[1].state_dict().items(), 2)
    with pytest.raises(StaleWeightsError, match=r"version 2; published was 3"):
        await verify(client, replace(location, version=3))
    if not (await client.capabilities()).tensor_checksums:
        return
    name = "model.layers.1.mlp.up_proj.weight"
    with pytest.raises(StaleWeightsError, match=name):
        await verify(client, replace(location, checksums={**location.checksums, name: "0" * 32}))


async def test_a_damaged_publication_shows_by_loading_it_again(
    client: EngineClient, publisher: Publisher, tiny_models: tuple[Path, Path], references: References
) -> None:
    location = await publish(publisher, [client], references[1].state_dict().items(), 4)
    await verify_by_reload(publisher, client, location, tiny_models[0])
    if (await client.capabilities()).tensor_checksums:
        return  # such an engine tells each tensor, and `verify` compares them
    await client.update_from_disk(str(tiny_models[0]), location.version, flush=False)
    await verify(client, location)  # by its version alone
    with pytest.raises(StaleWeightsError, match="differs from version 4"):
        await verify_by_reload(publisher, client, location, tiny_models[0])


async def test_weights_that_cannot_be_loaded_leave_the_old_ones(
    client: EngineClient, references: References, tmp_path: Path
) -> None:
    with pytest.raises(EngineError, match="/update_weights_from_disk"):
        await client.update_from_disk(str(tmp_path / "nothing"), 9)
    assert await client.weight_version() == 0
    (one,) = await client.generate(PROMPT, Sampling(max_tokens=8))
    assert gap(references[0], one) <= TOLERANCE


async def test_a_whole_version_follows_changes_that_do_not_fit(
    client: EngineClient, served: Any, references: References, tiny_models: tuple[Path, Path]
) -> None:
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
        (one,) = await client.generate(PROMPT, Sampling(max_tokens=16))
        assert one.spans == (Span(start=0, version=version),)
        assert gap(model, one) <= TOLERANCE
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
    (one,) = await client.generate(PROMPT, Sampling(max_tokens=16))
    assert gap(model, one) <= TOLERANCE
    await start_over(client, tiny_models[0])


async def test_a_broadcast_is_received_within_an_update_alone(client: EngineClient) -> None:
    bucket = Bucket(names=("model.norm.weight",), dtypes=("float32",), shapes=((64,),))
    with pytest.raises(EngineError, match=r"begin_weight_update"):
        await client.update_from_broadcast("nobody", bucket, version=2)
    await client.health()
    assert await client.weight_version() == 0
