"""Every bundled part, recipe and command passes `rlcore plugins check`.

Engines, trainers and clusters run their suites in their own packages: they start servers and processes. So do
bridges; here two are checked as a user would check them.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from threading import Thread
from typing import Any

import pytest
import torch
from program import Program
from transformers import AutoModelForCausalLM

from rlcore import Kind, ModelFamily, Part, Prompt, Rollout, RunInfo
from rlcore.learning.batch_file import save_rollout
from rlcore.plugins.loader import Switches, load
from rlcore.tracking.run_files import RunFiles
from rlcore_cli import plugin as cli
from rlcore_cli.main import run
from rlcore_cli.naming import Offer, offers
from rlcore_cli.program import start
from rlcore_megatron.testing.bridges import BridgeConformance
from rlcore_testing import tensors
from rlcore_testing.conformance import Subject
from rlcore_testing.filters import scored

MANY = 200_000
"""Parameters of a model that is not tiny any more."""
HEAVY = (Kind.ENGINE, Kind.TRAINER, Kind.CLUSTER, Kind.MODEL)
WATCH = ("metric", "rollout/reward_mean")
NEEDS: Mapping[str, Sequence[str]] = {
    "callback adaptive_kl": ("--callback.adaptive-kl.target", "0.1"),
    "callback reduce_lr": ("--callback.reduce-lr.metric", WATCH[1], "--callback.reduce-lr.patience", "2"),
    "callback stop_at": ("--callback.stop-at.metric", WATCH[1], "--callback.stop-at.above", "0.5"),
    "generator environment": ("--generator.environment", "parts_of_check:Guess"),
    "generator harbor": ("--task", "harbor", "--source.path", "{folder}/task"),
    "generator replay": ("--generator.path", "{folder}/samples"),
    "generator session": ("--generator.agent", "parts_of_check:agent"),
    "generator tools": ("--generator.function", "parts_of_check:add", "--data", "{folder}/chat.jsonl"),
    "model_hook freeze": ("--model-hook.freeze.pattern", "norm"),
    "producer saved": ("--producer.path", "{folder}"),
    "reward code": ("--data", "{folder}/code.jsonl"),
    "reward ifeval": ("--data", "{folder}/rows.jsonl"),
    "reward multiple_choice": ("--data", "{folder}/rows.jsonl"),
    "reward reasoning_gym": ("--task", "reasoning_gym"),
    "reward remote": ("--reward.remote.url", "{url}"),
    "source episodes": ("--source.text", "play"),
    "source file": ("--source.path", "{folder}/rows.jsonl"),
    "source harbor": ("--source.path", "{folder}/task"),
    "source verifiers": ("--source.environment", "parts-of-check"),
    "tracker wandb": ("--tracker.wandb.mode", "offline"),
}
"""The settings that have no default, and the prompts of rewards that judge rows of their own."""
ELSEWHERE = {
    "reward environment": "it reads what the generator `environment` leaves in the sample",
    "reward judge": "it asks a language model",
    "reward reward_model": "it asks a classifier, with the classifier's tokenizer",
}
PACKAGES = {
    "source verifiers": "verifiers",
    "tracker mlflow": "mlflow",
    "tracker tensorboard": "tensorboardX",
    "tracker wandb": "wandb",
}
"""Part → the optional package that it needs."""
PARTS = '''
async def agent(session):
    import openai
    async with openai.AsyncOpenAI(base_url=session.openai_url, api_key=session.api_key) as client:
        asked = [{"role": "user", "content": "question"}]
        await client.chat.completions.create(model="policy", messages=asked)

def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: one
        b: the other
    """
    return a + b

class Guess:
    def __init__(self):
        self.turns = 0
    async def reset(self, sample):
        return "guess"
    async def step(self, text):
        from rlcore_environment.protocol import Step
        self.turns += 1
        return Step(observation="no", done=self.turns == 2)

def load_environment():
    import verifiers
    return verifiers.ReasoningGymEnv(gym="leg_counting", num_train_examples=4, num_eval_examples=2)
'''
ROW = {
    "prompt": "Which one?",
    "label": "B",
    "metadata": {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
}
TASK = {
    "task.toml": "",
    "instruction.md": "Do nothing.",
    "tests/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n",
}
"""A task of Harbor."""


class Answers(BaseHTTPRequestHandler):
    """A reward server: half a point for everything."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        answer = b'{"score": 0.5}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("given")
    (folder / "parts_of_check.py").write_text(PARTS)
    (folder / "rows.jsonl").write_text(json.dumps(ROW) + "\n")
    (folder / "code.jsonl").write_text(json.dumps(ROW | {"label": "assert add(1, 2) == 3"}) + "\n")
    chat = ROW | {"prompt": [{"role": "user", "content": "question"}]}
    (folder / "chat.jsonl").write_text(json.dumps(chat) + "\n")
    for name, text in TASK.items():
        (folder / "task" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "task" / name).write_text(text)
    tracker = RunFiles()
    tracker.start(RunInfo(folder=folder, settings={"save_rollouts_every": 1}, plugins={}, step=0))
    asked: dict[str, Any] = {
        "prompt": Prompt(prompt_id="p", text="question"),
        "prompt_ids": tuple(b"question"),
        "group_id": 0,
    }
    tracker.rollout(1, [scored(index, 1.0, **asked, rollout_id=f"0.{index}") for index in range(3)])
    tracker.end("completed")
    batch = tensors.scored([1.0, 0.0], [0, 0])
    batch = batch.with_columns(per_token={"fresh": torch.ones(4)})
    for step in (1, 2, 3):
        metrics = {"rollout/response_tokens": 4.0}
        save_rollout(folder, Rollout(step=step, version=step - 1, groups=(), metrics=metrics), batch)
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        yield {"folder": str(folder), "url": url}
        server.shutdown()


def bundled() -> list[Offer]:
    found = offers(start(Switches.from_environment(), {"cli": cli}))
    return [one for one in found if one.kind not in HEAVY]


def bridges() -> list[Offer]:
    """Families with a bridge: not that of the trainer that needs none."""
    every = offers(start(Switches.from_environment(), {"cli": cli}))
    models = [one for one in every if one.kind == Kind.MODEL]
    return [one for one in models if "*" not in getattr(one.entry and one.entry.record, "architectures", ())]


@pytest.mark.parametrize("offer", bridges(), ids=lambda offer: offer.name)
def test_the_models_that_a_bridge_is_checked_with_are_tiny(offer: Offer) -> None:
    assert offer.entry is not None
    family = offer.entry.record
    assert isinstance(family, ModelFamily)
    suite = BridgeConformance.of(Subject(record=family, part=Part(name=family.name, factory=family.factory)))
    shapes = [*suite.axes["size"], *suite.layout_models.values()]
    assert len(shapes) > 1
    for shape in shapes:
        config = suite.config(**shape)
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config)
        assert sum(one.numel() for one in model.parameters()) < MANY


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["llama", "deepseek_v3"])
def test_a_bundled_bridge_passes_its_suite(name: str, program: Program) -> None:
    [checked] = program.json("plugins", "check", name, "--json")["checked"]
    held = {one["name"] for one in checked["findings"] if one["outcome"] == "ok"}
    assert {"logits are those of transformers", "layouts agree with one rank"} <= held


def test_every_plugin_is_sound_and_every_exception_a_part() -> None:
    known = {f"{one.kind} {one.name}" for one in bundled()}
    assert known >= {*NEEDS, *ELSEWHERE}
    plugins = load(Switches())
    assert plugins.registry.names(Kind.REWARD)
    assert not plugins.broken


@pytest.mark.grid  # a second or more each
@pytest.mark.parametrize("offer", bundled(), ids=lambda offer: f"{offer.kind} {offer.name}")
def test_a_bundled_part_passes_its_suite(
    offer: Offer,
    given: Mapping[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(given["folder"])
    whose = f"{offer.kind} {offer.name}"
    if whose in ELSEWHERE:
        pytest.skip(ELSEWHERE[whose])
    if whose in PACKAGES and find_spec(PACKAGES[whose]) is None:
        pytest.skip(f"{PACKAGES[whose]} is not installed")
    args = [one.format(**given) for one in NEEDS.get(whose, ())]
    code = run(["plugins", "check", offer.name, "--kind", offer.kind, "--json", *args])
    told = capsys.readouterr()
    assert code in (0, 1), told.err
    [checked] = json.loads(told.out)["checked"]
    assert not [one for one in checked["findings"] if one["outcome"] == "fails"]
    assert [one for one in checked["findings"] if one["outcome"] == "ok"]
