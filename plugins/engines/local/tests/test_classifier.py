"""A sequence classifier behind `/classify`: what transformers says, within limits, and nothing else."""

import asyncio
import json
import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from safetensors.torch import save_file
from transformers import AutoTokenizer

from rlcore.api.errors import ModelError
from rlcore_local.classify import Classifier, Classify, make_app
from rlcore_local.settings import Settings
from rlcore_local.testing import LOCAL
from rlcore_testing.checkpoints import publish_fp8
from rlcore_testing.engine_server import TOKEN, launch_of, serving
from rlcore_testing.reward_models import CONTEXT, make_reward_model, reference_scores

TEXTS = [list(range(5, 5 + length)) for length in (7, 1, 40, 12, 12, 3)]
TOLERANCE = 1e-6
LIMIT_S = 120.0


def apart(found: list[list[float]], wanted: list[list[float]]) -> float:
    """The largest difference."""
    return max(
        abs(a - b) for one, two in zip(found, wanted, strict=True) for a, b in zip(one, two, strict=True)
    )


def scored(settings: Settings) -> list[list[float]]:
    """What a classifier says of `TEXTS`."""
    classifier = Classifier(settings)
    return [scores for batch in classifier.batches(TEXTS) for scores in classifier.scores(batch)]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_padding_changes_no_score(family: str, tmp_path: Path) -> None:
    path = make_reward_model(tmp_path / family, family, num_labels=2)
    wanted = reference_scores(path, TEXTS)
    found = scored(Settings(model_path=path, max_batch=4))
    assert [len(scores) for scores in found] == [2] * len(TEXTS)
    assert apart(found, wanted) < TOLERANCE
    assert min(abs(one[0] - two[0]) for one, two in pairwise(found[:4])) > 1e-3


def test_weights_in_fp8_score_as_what_they_stand_for(tmp_path: Path) -> None:
    small = make_reward_model(tmp_path / "small")
    full = Path(shutil.copytree(small, tmp_path / "full"))
    save_file(publish_fp8(small, (8, 12)), full / "model.safetensors", metadata={"format": "pt"})
    scores = scored(Settings(model_path=small))
    assert scores == scored(Settings(model_path=full))
    assert apart(scores, reference_scores(full, TEXTS)) < TOLERANCE


def test_a_model_without_a_padding_token(tmp_path: Path) -> None:
    """transformers would not know where a padded text ends."""
    path = make_reward_model(tmp_path / "model", pad_token_id=None)
    assert apart(scored(Settings(model_path=path)), reference_scores(path, TEXTS)) < TOLERANCE


def test_a_head_that_transformers_does_not_know(tmp_path: Path) -> None:
    path = make_reward_model(tmp_path / "model")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "architectures": ["Qwen2ForRewardModel"]}))
    with pytest.raises(
        ModelError, match=r"the local engine cannot serve Qwen2ForRewardModel; of reward models"
    ):
        Classifier(Settings(model_path=path))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_reward_model(tmp_path_factory.mktemp("rewards") / "model")


@pytest.fixture(scope="module")
def url(model: Path, tmp_path_factory: pytest.TempPathFactory, forked_servers: None) -> Iterator[str]:
    launch = launch_of(model, tmp_path_factory.mktemp("server"), context_length=CONTEXT)
    with serving(launch, LOCAL) as at:
        yield at


async def ask(url: str, path: str, body: Any = None, *, status: int = 200, token: str = TOKEN) -> Any:
    limit = aiohttp.ClientTimeout(total=LIMIT_S)
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(url, headers=headers, timeout=limit) as session,
        session.post(path, json=body or {}) as response,
    ):
        text = await response.text()
        assert response.status == status, text
        return json.loads(text) if text else None


async def test_one_text_and_several(url: str, model: Path) -> None:
    wanted = reference_scores(model, TEXTS)
    answers = await ask(url, "/classify", {"input_ids": TEXTS, "rid": "r"})
    assert apart([answer["embedding"] for answer in answers], wanted) < TOLERANCE
    assert [answer["meta_info"]["prompt_tokens"] for answer in answers] == list(map(len, TEXTS))
    assert [answer["meta_info"]["id"] for answer in answers] == [f"r_{n}" for n in range(len(TEXTS))]
    one = await ask(url, "/classify", {"input_ids": TEXTS[2]})
    assert apart([one["embedding"]], [wanted[2]]) < TOLERANCE
    ids = AutoTokenizer.from_pretrained(model).encode("Why?")
    (said,) = await ask(url, "/classify", {"text": ["Why?"]})
    assert apart([said["embedding"]], reference_scores(model, [ids])) < TOLERANCE


async def test_it_says_what_it_is_and_that_it_lives(url: str) -> None:
    info = await ask(url, "/model_info")
    assert (info["is_generation"], info["architectures"]) == (False, ["Qwen2ForSequenceClassification"])
    assert {"classify", "health"} < set((await ask(url, "/server_info"))["capabilities"])
    assert await ask(url, "/health", token="none") is None
    assert await ask(url, "/health_generate") is None


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/generate", {"input_ids": [5]}, "gives scores, not tokens: /generate needs a language model."),
        (
            "/v1/chat/completions",
            {},
            "gives scores, not tokens: /v1/chat/completions needs a language model.",
        ),
        ("/classify", {"input_ids": [5] * (CONTEXT + 1)}, "(129 tokens) is longer than the model's context"),
        ("/classify", {"input_ids": [[5], []]}, "input_ids: must not be empty"),
        ("/classify", {"input_ids": [5000]}, "the token ids must be in [0, 259]"),
        ("/classify", {}, "Either text or input_ids should be provided."),
        ("/classify", {"input_ids": [5], "labels": 3}, "labels"),
    ],
)
async def test_refusals(url: str, path: str, body: Any, said: str) -> None:
    assert said in (await ask(url, path, body, status=400))["error"]["message"]


async def test_what_nobody_waits_for_any_more_is_not_computed(model: Path) -> None:
    """A request is made again where it takes too long: what it has left must not be in its way."""
    begun, may_go = threading.Event(), threading.Event()

    class Held(Classifier):
        calls = 0

        def scores(self, texts: Sequence[Sequence[int]]) -> list[list[float]]:
            self.calls += 1
            begun.set()
            may_go.wait(LIMIT_S)
            return super().scores(texts)

    settings = Settings(model_path=model, max_batch=1)
    held = Held(settings)
    server = TestServer(make_app(Classify(settings, ThreadPoolExecutor(1), held), TOKEN))
    async with server:
        url = str(server.make_url(""))
        asking = asyncio.ensure_future(ask(url, "/classify", {"input_ids": TEXTS}))
        await asyncio.to_thread(begun.wait, LIMIT_S)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await ask(url, "/health")  # the server has seen by now that the other connection is closed
        may_go.set()
        await ask(url, "/server_info")
        assert held.calls == 1
        await ask(url, "/classify", {"input_ids": TEXTS})
        assert held.calls == 1 + len(TEXTS)


async def test_a_token_is_needed(url: str) -> None:
    assert await ask(url, "/classify", {"input_ids": [5]}, status=401, token="x") == {"error": "Unauthorized"}
