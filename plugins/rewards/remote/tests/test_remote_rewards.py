"""`remote`, `judge` and `reward_model` against a real server on loopback that does what each test says."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from aiohttp import web
from pydantic import ValidationError

from rlcore import ConfigError, Json, RewardPart, RewardStatus, Score
from rlcore.rollout.rewards import ERROR_KEY, RewardPool
from rlcore.rollout.score_check import Failure, checked_scores
from rlcore_remote import client
from rlcore_remote.config import JudgeConfig, RemoteConfig, RewardModelConfig
from rlcore_remote.judge import Judge
from rlcore_remote.remote import Remote
from rlcore_remote.reward_model import RewardModel
from rlcore_testing.rewards import Case, RewardConformance, sample


@dataclass
class Server:
    """`answer`: body → what to answer, or the status; `bodies`, `tokens`: what came; `url`."""

    url: str = ""
    answer: Callable[[Any], Any] = lambda body: 1.0
    bodies: list[Any] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.tokens.append(request.headers.get("Authorization"))
        answer = self.answer(body)
        if isinstance(answer, web.StreamResponse):
            return answer
        if isinstance(answer, float) and answer < 0:
            await asyncio.sleep(-answer)
        return web.json_response(answer)


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    """In a thread: the reward has an event loop of its own."""
    server, ready, loop = Server(), threading.Event(), asyncio.new_event_loop()

    async def serve() -> web.AppRunner:
        app = web.Application()
        app.router.add_post("/{path:.*}", server.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        return runner

    def main() -> None:
        runner = loop.run_until_complete(serve())
        ready.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=main)
    thread.start()
    assert ready.wait(60)
    yield server
    loop.call_soon_threadsafe(loop.stop)
    thread.join(60)


@pytest.fixture
def server(running: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """As new, for each test; pauses between tries are short."""
    running.bodies, running.tokens, running.answer = [], [], lambda body: 1.0
    monkeypatch.setattr(client, "FIRST_PAUSE_S", 0.01)
    return running


class TestRemote(RewardConformance):
    cases: ClassVar = (Case(sample("1"), 1.0), Case(sample("22"), 2.0))
    parts = frozenset({"length"})

    @pytest.fixture(autouse=True)
    def served(self, server: Server) -> None:
        server.answer = lambda body: {"score": len(body["response"]), "parts": {"length": 1}}
        config = RemoteConfig(url=server.url)
        type(self).part = RewardPart(name="remote", factory="rlcore_remote.remote:Remote", config=config)


class TestJudge(RewardConformance):
    cases: ClassVar = (Case(sample("1", "1"), 0.5), Case(sample("2", "1"), 0.0))

    @pytest.fixture(autouse=True)
    def served(self, server: Server) -> None:
        server.answer = lambda body: completion(f"Score: {5 * (body['messages'][0]['content'] == '1/1')}")
        config = JudgeConfig(url=server.url, model="m", template="{response}/{label}")
        type(self).part = RewardPart(name="judge", factory="rlcore_remote.judge:Judge", config=config)


def status(code: int, text: str = "") -> web.Response:
    return web.Response(status=code, text=text)


def completion(text: str | None) -> Json:
    return {"choices": [{"message": {"role": "assistant", "content": text}}]}


def failed(reward: Remote | Judge | RewardModel) -> str:
    [outcome] = checked_scores(reward, [sample("4", "4")])
    assert isinstance(outcome, Failure), outcome
    return outcome.reason


def test_the_server_gets_what_there_is_to_judge_and_says_the_score(server: Server) -> None:
    server.answer = lambda body: {"score": len(body["response"]), "parts": {"length": 3}}
    chat = [{"role": "user", "content": "2+2"}]
    group = [
        sample(text, "4", prompt=chat, metadata={"level": 1}, index=i) for i, text in enumerate(["4", "four"])
    ]
    assert Remote(RemoteConfig(url=server.url)).score(group) == [
        Score(value=1.0, parts={"length": 3.0}),
        Score(value=4.0, parts={"length": 3.0}),
    ]
    asked = next(body for body in server.bodies if body["response"] == "4")
    assert asked == {
        "prompt": chat,
        "response": "4",
        "label": "4",
        "metadata": {"level": 1},
        "status": "completed",
    }
    assert server.tokens == [None, None]


def test_a_number_alone_is_a_score(server: Server) -> None:
    server.answer = lambda body: 0.25
    assert Remote(RemoteConfig(url=server.url)).score([sample("4")]) == [Score(value=0.25)]


def test_what_may_pass_is_tried_again(server: Server) -> None:
    answers = iter([status(503), status(429), {"score": 1}])
    server.answer = lambda body: next(answers)
    assert Remote(RemoteConfig(url=server.url)).score([sample("4")]) == [Score(value=1.0)]
    assert len(server.bodies) == 3


def test_tries_are_counted(server: Server) -> None:
    server.answer = lambda body: status(500)
    assert "the server answered 500, in 3 tries" in failed(Remote(RemoteConfig(url=server.url, retries=2)))
    assert len(server.bodies) == 3


def test_the_budget_of_time_ends_the_tries(server: Server) -> None:
    server.answer = lambda body: status(500)
    assert "in 1 tries" in failed(Remote(RemoteConfig(url=server.url, retries=100, retry_budget=0)))
    assert len(server.bodies) == 1


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (status(400, "no such label"), "the server answered 400: no such label"),
        (web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}), "the server answered 302"),
        (web.Response(text="fine"), "no JSON: 'fine'"),
        (web.Response(body=b"1" * (client.MAX_ANSWER_BYTES + 10)), "longer than"),
        ({"score": "high"}, "'high' where a number was expected"),
        ({"score": True}, "True where a number"),
        ({}, "None where a number"),
        ([1], "[1] where a number"),
        ({"score": 1, "parts": [1]}, "expected numbers by name"),
        (float("nan"), "nan where a number"),
    ],
)
def test_what_is_wrong_for_good_is_no_score_at_once(server: Server, answer: Any, reason: str) -> None:
    server.answer = lambda body: answer
    assert reason in failed(Remote(RemoteConfig(url=server.url)))
    assert len(server.bodies) == 1


def test_a_slow_answer_is_no_answer(server: Server) -> None:
    server.answer = lambda body: -5.0
    reward = Remote(RemoteConfig(url=server.url, request_timeout=0.2, retries=0))
    assert "no answer from the server (TimeoutError" in failed(reward)


def test_nobody_there_is_no_score() -> None:
    reason = failed(Remote(RemoteConfig(url="http://127.0.0.1:9/", retries=0)))
    assert "no answer from the server (ClientConnectorError" in reason


def test_the_token_comes_from_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    config = RemoteConfig(url=server.url, token_env="JUDGE_TOKEN")
    with pytest.raises(ConfigError, match="variable 'JUDGE_TOKEN' is not set"):
        Remote.check(config)
    monkeypatch.setenv("JUDGE_TOKEN", "s3cret")
    Remote.check(config)
    Remote(config).score([sample("4")])
    assert server.tokens == ["Bearer s3cret"]
    assert "s3cret" not in config.model_dump_json()


async def test_a_failure_is_a_status_of_the_group(server: Server) -> None:
    server.answer = lambda body: status(404) if body["response"] == "bad" else 1.0
    part = RewardPart(
        name="remote", factory="rlcore_remote.remote:Remote", config=RemoteConfig(url=server.url)
    )
    async with RewardPool([part], workers=1, timeout=60) as pool:
        lost = await pool.score([sample("good"), sample("bad", index=1)])
        kept = await pool.score([sample("good")])
    assert [one.reward_status for one in lost] == [RewardStatus.FAILED] * 2
    assert "404" in lost[0].metadata[ERROR_KEY]
    assert kept[0].score == Score(value=1.0)


def test_a_frozen_model_answers_no_posts() -> None:
    with pytest.raises(ValidationError, match="a frozen model answers no such requests"):
        RemoteConfig(url="frozen:judge")


def test_the_judge_is_asked_by_the_template(server: Server) -> None:
    server.answer = lambda body: completion("Good.\nScore: 3\nNo: **Score: 7.5**")
    config = JudgeConfig(
        url=server.url, model="big", system="Be fair.", template="Q {prompt} A {response} R {label} {{}}"
    )
    chat = [{"role": "user", "content": "2+2"}]
    assert Judge(config).score([sample("4 {x}", 4, prompt=chat)]) == [Score(value=0.75)]
    [asked] = server.bodies
    assert asked == {
        "model": "big",
        "messages": [
            {"role": "system", "content": "Be fair."},
            {"role": "user", "content": "Q user: 2+2 A 4 {x} R 4 {}"},
        ],
        "temperature": 0.0,
        "max_tokens": 1024,
    }


def test_a_server_of_the_run_is_asked_until_it_is_replaced(server: Server) -> None:
    """With the run's token, and beyond `retries`, within the budget."""
    left = [503] * 5
    server.answer = lambda body: status(left.pop()) if left else completion("Score: 5")
    config = JudgeConfig(url="frozen:judge", retries=0)
    Judge.check(config)
    at = config.served(server.url.removesuffix("/v1"), "of-the-run", "")
    assert Judge(at).score([sample("4")]) == [Score(value=0.5)]
    assert server.tokens == ["Bearer of-the-run"] * 6
    left += [503] * 1000
    assert "503" in failed(Judge(config.model_copy(update={"retry_budget": 0.0}).served(server.url, "t", "")))
    assert len(left) == 999


def test_another_scale_and_pattern(server: Server) -> None:
    server.answer = lambda body: completion("[[2]]")
    config = JudgeConfig(url=server.url, model="m", low=1, high=5, score_pattern=r"\[\[(\d)\]\]")
    assert Judge(config).score([sample("4")]) == [Score(value=0.25)]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (completion("I cannot say."), "the judge said no score: 'I cannot say.'"),
        (completion(None), "the judge said no score"),
        (completion("Score: 11"), "the judge's score is 11, expected 0 to 10"),
        ({"choices": []}, "no chat completion"),
        ({"error": "overloaded"}, "no chat completion"),
    ],
)
def test_a_judge_without_a_score_is_no_score(server: Server, answer: Json, reason: str) -> None:
    server.answer = lambda body: answer
    assert reason in failed(Judge(JudgeConfig(url=server.url, model="m")))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"url": "localhost:8000"}, "url"),
        ({"score_pattern": r"\d+"}, "expected one group, found 0"),
        ({"score_pattern": "("}, "not a regular expression"),
        ({"template": "How good is it?"}, "expected {response}"),
        ({"template": "{response} {answer}"}, "expected {response}"),
        ({"template": "{response"}, "not a template"),
        ({"low": 5, "high": 5}, "must be less than"),
        ({"model": ""}, "model is missing"),
        ({"url": "frozen:judge"}, "model has no effect on frozen:judge, which the run serves"),
        ({"url": "frozen:judge", "model": "", "token_env": "T"}, "token_env has no effect on frozen:judge"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError) as caught:
        JudgeConfig(**{"url": "http://127.0.0.1:1", "model": "m", **settings})
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"embedding": [1.0]}, "the server answered no list of 1 scores"),
        ([], "the server answered no list of 1 scores"),
        ([1.0], "the server answered no scores: 1.0"),
        ([{"score": 1.0}], "the server answered no scores"),
        ([{"embedding": [[0.5]]}], "[0.5] where a number was expected"),
        ([{"embedding": [float("nan")]}], "nan where a number was expected"),
        ([{"embedding": []}], "the model gives 0 scores"),
        (status(400, "too long"), "the server answered 400: too long"),
    ],
)
def test_a_reward_model_without_a_score_is_no_score(server: Server, answer: Any, reason: str) -> None:
    server.answer = lambda body: answer
    assert reason in failed(RewardModel(RewardModelConfig(url=server.url, template="{response}")))


def test_a_group_is_one_request(server: Server) -> None:
    left = [503]
    scores = [{"embedding": [0.5]}, {"embedding": [2]}]
    server.answer = lambda body: status(left.pop()) if left else scores
    config = RewardModelConfig(url="frozen:rm", retries=0, template="{prompt}{response}")
    reward = RewardModel(config.served(server.url, "of-the-run", ""))
    assert reward.score([sample("4"), sample("5")]) == [Score(value=0.5), Score(value=2.0)]
    assert server.bodies == [{"text": ["question4", "question5"]}] * 2
    assert server.tokens == ["Bearer of-the-run"] * 2


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"url": "http://h"}, "needs either tokenizer, the directory of its model's tokenizer"),
        ({"url": "http://h", "tokenizer": "d", "template": "{response}"}, "needs either tokenizer"),
        ({"url": "http://h", "template": "{prompt}"}, "expected {response}, and of others {prompt} only"),
        (
            {"url": "frozen:rm", "tokenizer": "d"},
            "tokenizer has no effect on frozen:rm, which the run serves",
        ),
        ({"url": "frozen:rm", "token_env": "T"}, "token_env has no effect on frozen:rm"),
        ({"url": "frozen:rm", "label": -1}, "label"),
    ],
)
def test_settings_of_a_reward_model_that_cannot_work(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RewardModelConfig(**settings)
    assert reason in str(caught.value)
