"""Reward functions of other frameworks, from the files that their packages ship."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rlcore import Json, Kind, RewardConfig, RewardPart, RunConfig, Sample, Score
from rlcore.plugins.loader import Switches, load
from rlcore_testing.rewards import sample

CHAT = ({"role": "user", "content": "2 + 2?"},)
VERL = find_spec("verl")
needs_verl = pytest.mark.skipif(VERL is None, reason="needs verl")


def part_of(file: Path, name: str, **settings: Json) -> RewardPart:
    """As `--reward FILE:NAME` makes it."""
    plugins = load(Switches(only=("functions",), files=(file,)))
    entry = plugins.registry.find(Kind.REWARD, name, "--reward")
    config = entry.config(**settings)
    assert isinstance(config, RewardConfig)
    record = entry.component
    return RewardPart(name=name, factory=record.factory, config=config, adapter=record.adapter)


def built(part: RewardPart, tokenizer: Any = None, settings: Mapping[str, Any] | None = None) -> Any:
    return part.build(tokenizer=tokenizer, settings=settings or {})


def scores(file: Path, name: str, samples: Sequence[Sample]) -> list[Score]:
    return [*built(part_of(file, name)).score(samples)]


def reward_score() -> Path:
    assert VERL is not None
    assert VERL.origin is not None
    return Path(VERL.origin).parent / "utils" / "reward_score"


def test_trls_rewards_are_offered_by_a_file_that_names_them(tmp_path: Path) -> None:
    file = tmp_path / "of_trl.py"
    file.write_text(
        "from trl.rewards import accuracy_reward, get_cosine_scaled_reward, think_format_reward\n"
        "cosine = get_cosine_scaled_reward(max_len=4)\n"
        '__all__ = ["accuracy_reward", "cosine"]\n'
    )
    answers = [
        sample(r"It is \boxed{4}.", "4", prompt=CHAT, tokens=4),
        sample("5", "4", prompt=CHAT, tokens=2, index=1),
    ]
    assert [one.value for one in scores(file, "accuracy_reward", answers)] == [1, 0]
    assert [one.value for one in scores(file, "cosine", answers)] == [0.5, -0.75]
    offered = load(Switches(only=("functions",), files=(file,))).registry.names(Kind.REWARD)
    assert {*offered} == {"accuracy_reward", "cosine"}


SAID = (
    r"<think>\nSo.\n</think>\nIt is \boxed{\frac{63}{400}}.",
    r"\boxed{\frac{64}{400}}",
    r"<think>\boxed{\frac{63}{400}}",
    "a a a a a a",
)
"""Answers as in TRL's own tests."""


@pytest.mark.parametrize("label", [r"\frac{63}{400}", "the moon"])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("accuracy_reward", None),
        ("reasoning_accuracy_reward", None),
        ("think_format_reward", None),
        ("get_cosine_scaled_reward", {"max_len": 20}),
        ("get_repetition_penalty_reward", {"ngram_size": 2}),
        ("get_soft_overlong_punishment", {"max_completion_len": 6, "soft_punish_cache": 4}),
    ],
)
def test_trls_functions_say_what_they_say_there(
    tmp_path: Path, name: str, settings: dict[str, Any] | None, label: str
) -> None:
    file = tmp_path / "of_trl.py"
    made = name if settings is None else f"{name}(**{settings})"
    file.write_text(f'from trl.rewards import {name}\nmade = {made}\n__all__ = ["made"]\n')
    answers = [sample(text, label, prompt=CHAT, tokens=3 + row, index=row) for row, text in enumerate(SAID)]
    function = getattr(import_module("trl.rewards"), name)
    theirs = (function if settings is None else function(**settings))(
        prompts=[list(CHAT)] * len(SAID),
        completions=[[{"role": "assistant", "content": text}] for text in SAID],
        completion_ids=[[2] * (3 + row) for row in range(len(SAID))],
        solution=[label] * len(SAID),
    )
    assert [one.value if one.applies else None for one in scores(file, "made", answers)] == theirs


@needs_verl
@pytest.mark.parametrize(
    ("file", "right", "wrong", "label", "expected"),
    [
        ("gsm8k.py", "so #### 72", "so #### 7", "72", [1, 0]),
        ("math_dapo.py", "Answer: 34", "Answer: 3", "34", [1, -1]),
        ("math_reward.py", r"\boxed{\frac12}", r"\boxed{2}", r"\frac{1}{2}", [1, 0]),
        (
            "search_r1_like_qa_em.py",
            "<answer>Ann</answer>",
            "<answer>Bob</answer>",
            {"target": ["ann"]},
            [1, 0],
        ),
    ],
)
def test_verls_own_scores(file: str, right: str, wrong: str, label: Json, expected: list[float]) -> None:
    answers = [sample(right, label), sample(wrong, label, index=1)]
    assert [one.value for one in scores(reward_score() / file, "compute_score", answers)] == expected


@needs_verl
def test_verls_score_of_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("reward_score")  # without the rest of verl, which needs a GPU's packages
    package.__path__ = [str(reward_score())]
    monkeypatch.setitem(sys.modules, "reward_score", package)
    file = tmp_path / "of_verl.py"
    file.write_text(
        'from reward_score.math_batch import compute_score_batched\n__all__ = ["compute_score_batched"]\n'
    )
    answers = [sample(r"\boxed{4}", "4"), sample(r"\boxed{5}", "4", index=1)]
    assert [one.value for one in scores(file, "compute_score_batched", answers)] == [1, 0]


SLIME = """
from slime.utils.types import Sample

async def of_one(args, sample, **rest):
    if not isinstance(sample, Sample):
        raise TypeError("a Sample of slime")
    done = sample.status is Sample.Status.COMPLETED
    return {"score": float(sample.response == sample.label and done), "acc": 1.0, "pred": sample.response}

async def of_group(args, samples, **rest):
    assert all(isinstance(sample, Sample) for sample in samples)
    return [float(sample.index) + len(sample.tokens) for sample in samples]
"""


@dataclass
class SlimeSample:
    """The fields of slime's sample that a reward reads. slime is on no package index."""

    class Status(Enum):
        PENDING = "pending"
        COMPLETED = "completed"

    group_index: int
    index: int
    prompt: Any
    tokens: list[int]
    response: str
    response_length: int
    label: Any
    loss_mask: list[int]
    rollout_log_probs: list[float]
    status: Status
    metadata: dict[str, Any] = field(default_factory=dict)


def test_functions_of_slime_get_slimes_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    types = ModuleType("slime.utils.types")
    types.Sample = SlimeSample  # type: ignore[attr-defined] # made here
    for name in ("slime", "slime.utils"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, types.__name__, types)
    file = tmp_path / "of_slime.py"
    file.write_text(SLIME)
    answers = [sample("4", "4", tokens=2), sample("5", "4", index=1, tokens=3)]
    [right, wrong] = scores(file, "of_one", answers)
    assert (right.value, right.parts, wrong.value) == (1, {"acc": 1}, 0)
    assert [one.value for one in scores(file, "of_group", answers)] == [3, 5]


def test_a_chat_is_text_to_slime(tmp_path: Path) -> None:
    class Letters:
        def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
            return "<user>" * len(token_ids)

    file = tmp_path / "of_slime.py"
    file.write_text("async def both(args, sample): return len(sample.prompt + sample.response)\n")
    tokenizer: Any = Letters()
    [score] = built(part_of(file, "both"), tokenizer).score([sample("4", prompt=CHAT)])
    assert score.value == len("<user>4")


ARGS = """
import asyncio

loops = []

async def of_args(args, sample, **kwargs):
    loops.append(asyncio.get_running_loop())
    assert loops[0] is loops[-1], "a connection that the function keeps belongs to the first one"
    assert (args.rm_type, args.group_rm, args.rollout_top_k) == (None, False, -1)
    return args.rollout_max_response_len + args.n_samples_per_prompt * (args.rm_url == "http://here")

async def of_group(args, samples):
    return [len(args.hf_checkpoint)] * len(samples)

async def of_more(args, sample):
    return args.eps_clip
"""

FAILS = """
import asyncio

ended = []

async def late(response):
    if response == "wrong":
        raise ValueError(response)
    if response == "count":
        return len(ended)
    try:
        await asyncio.sleep(60)
    finally:
        ended.append(response)
"""


def test_args_are_the_settings_of_the_run_by_slimes_names(tmp_path: Path) -> None:
    file = tmp_path / "of_slime.py"
    file.write_text(ARGS)
    settings = {**RunConfig.of(max_response_tokens=40, group_size=2).values(), "model": "dir"}
    reward = built(part_of(file, "of_args", args={"rm_url": "http://here"}), settings=settings)
    assert [reward.score([sample("4")])[0].value for _ in range(2)] == [42, 42]
    assert built(part_of(file, "of_group"), settings=settings).score([sample("4")])[0].value == 3
    part = part_of(file, "of_more")
    with pytest.raises(
        AttributeError, match=r"; give the value by --reward\.of-more\.args\.eps_clip VALUE\.$"
    ):
        built(part).score([sample("4")])
    of_package = replace(part, config=RewardConfig())  # it has no such setting
    with pytest.raises(AttributeError, match=r"by slime's name\.$"):
        built(of_package).score([sample("4")])


def test_a_call_that_fails_ends_the_others_of_its_group(tmp_path: Path) -> None:
    file = tmp_path / "of_slime.py"
    file.write_text(FAILS)
    reward = built(part_of(file, "late"))
    with pytest.raises(ValueError, match="wrong"):
        reward.score([sample("slow"), sample("wrong", index=1)])
    assert reward.score([sample("count")])[0].value == 1
