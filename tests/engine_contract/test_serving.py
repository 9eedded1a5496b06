"""What a run asks of the engines that serve its frozen models, its teacher among them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from rlcore import ConfigError, Group, Input, Request, RunConfig, Sampling, load_tokenizer
from rlcore.engines.client import EngineClient
from rlcore.rollout.scoring import TOKEN, ScoringEngines, check_vocabulary, client_of
from rlcore_remote.client import Client
from rlcore_remote.config import JudgeConfig
from rlcore_testing.engine_reference import PROMPT, TOLERANCE, References, log_probs
from rlcore_testing.samples import sample_of


async def test_it_teaches(
    client: EngineClient,
    references: References,
    tiny_models: tuple[Path, Path],
    served: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine as the teacher of a run: log-probs of the responses of whole groups, and its vocabulary."""
    monkeypatch.setenv(TOKEN, served.token)
    run = RunConfig.of(**{"teacher.url": client.url})
    responses: tuple[tuple[int, ...], ...] = ((11, 12, 13), (), (300, 5))
    samples = tuple(
        sample_of(ids, prompt_ids=PROMPT, index=index, extras={"kept": 1})
        for index, ids in enumerate(responses)
    )
    groups = [
        Group(group_id=number, prompt=samples[0].prompt, samples=part)
        for number, part in enumerate((samples[:1], samples[1:]))
    ]
    async with client_of(run, client.url) as teacher:
        scored = await ScoringEngines({"": teacher}).score(groups)
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
    with pytest.raises(ConfigError, match=r"--teacher.url .*401"):
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
    (same,) = await client.generate(Request(input_ids=prompt, sampling=Sampling(max_tokens=8, temperature=0)))
    (choice,) = answer["choices"]
    assert choice["message"]["content"] == same.text
    assert choice["finish_reason"] == same.finish_reason == "length"
    assert answer["usage"]["completion_tokens"] == 8
