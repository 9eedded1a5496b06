"""The generator `replay`: saved samples come back token by token, or the sample says why they do not."""

import json
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from rlcore import RECORDED, DataError, GenerationStatus, Generator, Prompt, RunInfo, Sample, Sampling, Span
from rlcore.rollout.context import EngineContext
from rlcore.tracking.run_files import RunFiles
from rlcore_replay.config import ReplayConfig
from rlcore_replay.generator import Replay
from rlcore_testing.generators import GeneratorConformance
from rlcore_testing.samples import sample_of
from rlcore_testing.token_engine import CountingReward, TokenEngine

PROMPT = Prompt(prompt_id="p", text="question")
IDS = tuple(b"question")
SAMPLING = Sampling(max_tokens=400)


def saved(index: int, **changes: object) -> Sample:
    made = sample_of(
        (97 + index, 32, 257),
        prompt=PROMPT,
        prompt_ids=IDS,
        index=index,
        loss_mask=(1, 0, 1),
        log_probs=(-0.1 - index / 3, 0.0, -2.5e-07),
        text=f"{index}",
        spans=(Span(start=0, version=7),),
        status=GenerationStatus.TRUNCATED if index == 2 else GenerationStatus.COMPLETED,
        metadata={"turns": [1, 2]},
    )
    return replace(made, **changes)  # type: ignore[arg-type] # fields of a sample


def write(folder: Path, step: int, *samples: Sample) -> Path:
    """By core's own tracker, so that what it writes is what is read."""
    tracker = RunFiles()
    tracker.start(RunInfo(folder=folder, settings={"save_rollouts_every": 1}, plugins={}, step=0))
    tracker.rollout(step, samples)
    tracker.end("completed")
    return folder / "samples"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path, 3, *(saved(index) for index in range(3)))


class TestConformance(GeneratorConformance):
    samples_anew: ClassVar[bool] = False

    @pytest.fixture(autouse=True)
    def _saved(self, path: Path) -> None:
        self.path = path

    def generator(self) -> Generator:
        return Replay(ReplayConfig(path=str(self.path)))


async def replayed(
    path: Path, asked: Sample, *, missing: str = "fail", sampling: Sampling = SAMPLING
) -> list[Sample]:
    engine = TokenEngine(lambda prompt, seed: "anew")
    generator = Replay(ReplayConfig.model_validate({"path": str(path), "missing": missing}))
    found = await generator.generate(
        EngineContext(engine, engine.tokenizer, sampling, CountingReward()), asked
    )
    return found if isinstance(found, list) else [found]


def pending(index: int = 0, group_id: int = 0) -> Sample:
    return sample_of(prompt=PROMPT, prompt_ids=IDS, group_id=group_id, index=index, seed=5)


async def test_tokens_log_probs_masks_and_statuses_are_exact(path: Path) -> None:
    for index in range(3):
        (found,) = await replayed(path, pending(index))
        expected = saved(index, spans=(Span(start=0, version=RECORDED),), seed=5, metrics={"replayed": 1.0})
        assert found == expected


async def test_a_split_trajectory_comes_back_whole(tmp_path: Path) -> None:
    first, second = saved(0), saved(0, prompt_ids=(*IDS, 1), response_ids=(5, 6, 7))
    found = await replayed(write(tmp_path, 1, first, second), pending())
    assert [(one.prompt_ids, one.response_ids) for one in found] == [
        (IDS, (97, 32, 257)),
        ((*IDS, 1), (5, 6, 7)),
    ]


async def test_other_draws_of_a_prompt_get_its_groups_in_turn(tmp_path: Path) -> None:
    samples = [saved(0, group_id=4, text="first"), saved(0, group_id=9, text="second")]
    path = write(tmp_path, 1, *samples)
    assert [(await replayed(path, pending(group_id=number)))[0].text for number in (4, 9, 10, 11)] == [
        "first",
        "second",
        "first",
        "second",
    ]


@pytest.mark.parametrize(
    ("asked", "failure"),
    [
        (pending(index=3), "not_saved"),
        (replace(pending(), prompt=replace(PROMPT, prompt_id="q")), "not_saved"),
        (replace(pending(), prompt_ids=(1,)), "other_prompt"),
    ],
)
async def test_what_cannot_be_replayed_fails(path: Path, asked: Sample, failure: str) -> None:
    (found,) = await replayed(path, asked)
    assert (found.status, found.failure) == (GenerationStatus.FAILED, failure)


async def test_longer_than_the_run_allows(path: Path) -> None:
    (found,) = await replayed(path, pending(), sampling=Sampling(max_tokens=2))
    assert found.failure == "too_long"


async def test_the_engine_answers_what_is_missing_or_evaluated(path: Path) -> None:
    (anew,) = await replayed(path, pending(index=3), missing="generate")
    (eval_,) = await replayed(path, replace(pending(), rollout_id="eval-0.0"))
    assert [one.text for one in (anew, eval_)] == ["anew", "anew"]
    assert anew.versions == {0}


def test_what_is_no_saved_sample_is_refused(tmp_path: Path, path: Path) -> None:
    def refused(name: str) -> str:
        with pytest.raises(DataError) as error:
            Replay(ReplayConfig(path=str(tmp_path / name)))
        return str(error.value)

    assert "no such file or folder" in refused("nowhere")
    (tmp_path / "empty").mkdir()
    assert "--save-rollouts-every" in refused("empty")
    row = json.loads((path / "rollout-3.jsonl").read_text().splitlines()[0])
    del row["trajectory"]["log_probs"]
    (tmp_path / "cut.jsonl").write_text(json.dumps(row))
    assert "cut.jsonl, line 1: no saved sample with its tokens" in refused("cut.jsonl")
    twice = path / "rollout-4.jsonl"
    twice.write_text((path / "rollout-3.jsonl").read_text())
    assert "is in" in refused("samples")
