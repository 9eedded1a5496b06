"""Tasks of Harbor: one that its package ships, and what a task may ask for."""

import asyncio
import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from refusals import Case, cases

from rlcore import DataError, EngineContext, GenerationStatus, Generator, Prompt, Sample, Sampling
from rlcore_environment.adapters.harbor import HarborEnvironment, HarborGenerator, command_of
from rlcore_environment.config import HarborConfig, HarborTasksConfig
from rlcore_environment.harbor_task import read_task
from rlcore_environment.protocol import Step
from rlcore_environment.source import HarborTasks
from rlcore_testing.generators import GeneratorConformance
from rlcore_testing.sources import SourceConformance
from rlcore_testing.token_engine import CountingReward, TokenEngine

PACKAGE = importlib.util.find_spec("harbor")
needs_harbor = pytest.mark.skipif(PACKAGE is None, reason="needs harbor")
TEST = (
    "#!/bin/bash\nif grep -qx hello greeting.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
)


def write(
    folder: Path, test: str = TEST, dockerfile: str = "FROM ubuntu:24.04\nWORKDIR /app\n", more: str = ""
) -> Path:
    """A task that asks for a file with a word."""
    for name in ("environment", "tests"):
        (folder / name).mkdir(parents=True)
    (folder / "task.toml").write_text(f'schema_version = "1.4"\n[verifier]\ntimeout_sec = 20.0\n{more}')
    (folder / "instruction.md").write_text("Write hello into greeting.txt.\n")
    (folder / "tests/test.sh").write_text(test)
    (folder / "environment/Dockerfile").write_text(dockerfile)
    return folder


def sample(folder: Path, image: Path | None = None) -> Sample:
    metadata = {"harbor_task": str(folder), "harbor_image": str(image or "")}
    prompt = Prompt(prompt_id="p", text="do it", metadata=metadata)
    return Sample(prompt=prompt, prompt_ids=(1, 2), group_id=0, index=0, rollout_id="0.0")


def work(folder: Path, *answers: str, image: Path | None = None, **settings: Any) -> list[Step]:
    async def trial() -> list[Step]:
        made = HarborEnvironment(HarborConfig(**settings))
        try:
            assert await made.reset(sample(folder, image)) == ""
            return [await made.step(answer) for answer in answers]
        finally:
            await made.close()

    return asyncio.run(trial())


@needs_harbor
@pytest.mark.parametrize(
    ("says", "reward"), [('{"readme": "a", "description": "b"}', 1), ('{"readme": 1}', 0)]
)
def test_a_task_that_harbor_ships(tmp_path: Path, says: str, reward: float) -> None:
    """Its instruction, which Harbor writes when it uses the task, is of no account to the tests."""
    assert PACKAGE is not None
    assert PACKAGE.origin is not None
    shipped = Path(PACKAGE.origin).parent / "cli/annotator/annotate-task-template"
    folder = shutil.copytree(shipped, tmp_path / "task")
    write_it = f"I write it.\n```bash\npwd; echo '{says}' > annotate-result.json\n```"
    first, last = work(folder, write_it, "Done.")
    assert first.observation == "/app\n[exit code 0]"
    assert (last.done, last.reward, last.metrics) == (True, reward, {"reward": reward})


def test_commands_see_what_those_before_have_done(tmp_path: Path) -> None:
    steps = work(
        write(tmp_path / "task"),
        "```sh\nfalse\n```",
        "```bash\necho hell > greeting.txt\necho x >&2\n```",
        "```\nsed -i s/$/o/ greeting.txt; cat greeting.txt\n```",
        "That is all.",
    )
    assert [step.observation for step in steps[:3]] == [
        "[exit code 1]",
        "x\n[exit code 0]",
        "hello\n[exit code 0]",
    ]
    assert [step.reward for step in steps] == [0, 0, 0, 1]


def test_the_files_of_the_dockerfile_are_there(tmp_path: Path) -> None:
    dockerfile = (
        'FROM x\n# a comment\nENV WORD="of mine" OTHER=2\nWORKDIR /data/in\n'
        "COPY --chown=1 words* \\\n  ./\nCOPY dir /opt/dir\n"
    )
    folder = write(tmp_path / "task", dockerfile=dockerfile)
    (folder / "environment/words.txt").write_text("w")
    (folder / "environment/dir").mkdir()
    (folder / "environment/dir/deep").write_text("d")
    (step,) = work(
        folder, "```bash\npwd; cat words.txt /opt/dir/deep; echo $WORD$OTHER; echo >> words.txt\n```"
    )
    assert step.observation == "/data/in\nwdof mine2\n[exit code 0]"


def test_what_commands_leave_does_not_speak_for_the_tests(tmp_path: Path) -> None:
    folder = write(tmp_path / "task", test="#!/bin/bash\ntrue\n")
    forged = (
        "```bash\nmkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; echo 1 > /tests/test.sh\n```"
    )
    with pytest.raises(RuntimeError, match="gave no reward"):
        work(folder, forged, "Done.")


@pytest.mark.parametrize(
    ("written", "reward", "metrics"),
    [
        ('{"reward": 0.5, "style-points": 2}', 0.5, {"reward": 0.5, "style_points": 2}),
        ('{"a": 1, "b": 0}', 0.5, {"a": 1, "b": 0}),
        ('{"a": "NaN"}', None, None),
        ("[]", None, None),
    ],
)
def test_rewards_as_json(
    tmp_path: Path, written: str, reward: float | None, metrics: dict[str, float]
) -> None:
    folder = write(tmp_path / "task", test=f"#!/bin/bash\necho '{written}' > /logs/verifier/reward.json\n")
    if reward is None:
        with pytest.raises(RuntimeError, match="no numbers"):
            work(folder, "Done.")
        return
    (step,) = work(folder, "Done.")
    assert (step.reward, step.metrics) == (reward, metrics)


def test_commands_and_tests_have_limits(tmp_path: Path) -> None:
    folder = write(tmp_path / "task", test="#!/bin/bash\nsleep 60\n")
    steps = work(
        folder, "```bash\nsleep 60\n```", "```bash\nseq 9999\n```", command_seconds=2, output_chars=5
    )
    assert [step.observation for step in steps] == ["[ended after 2 s]", "1\n2\n3\n[cut]\n[exit code 0]"]
    with pytest.raises(RuntimeError, match="timeout"):
        work(folder, "Done.", step_timeout=0.3)


def test_a_policy_that_runs_out_of_turns_is_judged(tmp_path: Path) -> None:
    engine = TokenEngine(lambda prompt, seed: "```bash\necho hello > greeting.txt\n```")
    ctx = EngineContext(engine, engine.tokenizer, Sampling(max_tokens=400), CountingReward())
    generator = HarborGenerator(HarborConfig(max_turns=2))
    found = asyncio.run(generator.generate(ctx, sample(write(tmp_path / "task"))))
    assert found.status is GenerationStatus.TRUNCATED
    assert [reward for _, reward in found.metadata["environment_turns"]] == [0, 1]


@pytest.mark.full
class TestHarbor(GeneratorConformance):
    @pytest.fixture(autouse=True)
    def _task(self, tmp_path: Path) -> None:
        self.folder = write(tmp_path / "task")

    def generator(self) -> Generator:
        return HarborGenerator(HarborConfig(max_turns=2))

    def prompt(self) -> Prompt:
        return sample(self.folder).prompt

    def answer(self, prompt: str, seed: int) -> str:
        return "done" if "exit" in prompt else "```\necho hello\n```"


class TestHarborTasks(SourceConformance):
    @pytest.fixture(autouse=True)
    def _tasks(self, tmp_path: Path) -> None:
        for name in "abc":
            write(tmp_path / name)
        self.path = str(tmp_path)

    def source(self) -> HarborTasks:
        return HarborTasks(HarborTasksConfig(path=self.path, held_out=1))


def test_prompts_are_instructions(tmp_path: Path) -> None:
    write(tmp_path / "a" / "b")
    write(tmp_path / "c")
    found = HarborTasks(HarborTasksConfig(path=str(tmp_path), held_out=1, how="Work.")).prompts()
    assert [prompt.prompt_id for prompt in found.train] == ["a/b"]
    assert [prompt.prompt_id for prompt in found.held_out["harbor"]] == ["c"]
    assert found.train[0].text == ({"role": "user", "content": "Work.\n\nWrite hello into greeting.txt."},)
    assert json.dumps(dict(found.train[0].metadata))
    with pytest.raises(DataError, match="found 0 folders"):
        HarborTasks(HarborTasksConfig(path=str(tmp_path / "none"))).prompts()


def test_tasks_that_do_not_fit_may_be_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "a")
    write(tmp_path / "b", dockerfile="FROM x\nRUN make\n")
    with pytest.raises(DataError, match="RUN make"):
        HarborTasks(HarborTasksConfig(path=str(tmp_path))).prompts()
    found = HarborTasks(HarborTasksConfig(path=str(tmp_path), skip_unfit=True)).prompts()
    assert [prompt.prompt_id for prompt in found.train] == ["a"]
    assert "1 of 2 tasks are left out. The first: " in caplog.text
    assert "RUN make" in caplog.text


@cases("environment: harbor")
def test_what_a_sandbox_does_not_have_is_refused(tmp_path: Path, case: Case) -> None:
    dockerfile, more = case.given
    folder = write(tmp_path / "task", dockerfile=dockerfile, more=more)
    with case.refused(DataError, tmp_path):
        read_task(folder)
    if "RUN" in dockerfile:
        assert str(read_task(folder, ignore_run=True).workdir) == "/app"


def test_an_image_takes_the_place_of_what_builds_it(tmp_path: Path) -> None:
    folder = write(tmp_path / "task", dockerfile="FROM x\nRUN make\nCOPY . /opt\nWORKDIR /srv\n")
    image = tmp_path / "image"
    (image / "root").mkdir(parents=True)
    task = read_task(folder, image)
    assert task.copies == []
    assert task.writable == ["/logs", "/root", "/srv", "/tests", "/tmp"]
    with pytest.raises(DataError, match="unpacked image of task"):
        HarborTasks(HarborTasksConfig(path=str(folder), images=str(image))).prompts()


def test_a_trial_in_an_unpacked_image(tmp_path: Path) -> None:
    """One of bash and cat alone, with a file that its image has built into the working directory."""
    image = tmp_path / "image"
    linked = subprocess.run(["ldd", "/bin/bash", "/bin/cat"], capture_output=True, text=True, check=True)
    for name in {"/bin/bash", "/bin/cat", *re.findall(r"(/\S+\.so\S*) \(", linked.stdout)}:
        (image / name[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(name, image / name[1:])
    (image / "app").mkdir()
    (image / "app/built").write_text("of the image")
    test = "#!/bin/bash\n[ -e /app/mine ] && echo 1 > /logs/verifier/reward.txt\n"
    folder = write(tmp_path / "task", test=test, dockerfile="FROM x\nRUN make built\nWORKDIR /app\n")
    steps = work(folder, "```bash\ncat built; echo x > mine; ls\n```", "Done.", image=image)
    assert steps[0].observation.startswith("of the image")
    assert "ls: command not found" in steps[0].observation
    assert steps[1].reward == 1
    assert not (image / "app/mine").exists(), "each trial has a copy"


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("```bash\nls\n```", "ls\n"),
        ("```python\nprint()\n```\nthen\n```sh\nls\n```\nok", "ls\n"),
        ("```\na\n```\n```\nb", "b"),
        ("```python\nprint()\n```\ndone", None),
        ("done", None),
    ],
)
def test_the_last_block_of_a_shell_is_the_command(text: str, command: str | None) -> None:
    assert command_of(text) == command
