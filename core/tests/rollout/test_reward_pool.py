"""The reward pool: real worker processes, rewards that misbehave, and what becomes of them."""

import asyncio
import errno
import json
import logging
import math
import os
import pickle
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from waits import eventually, gone

from rlcore.api.errors import PluginError
from rlcore.api.part import RewardPart
from rlcore.api.part_config import RewardConfig
from rlcore.api.plugin_file import PluginFile, import_plugin_file
from rlcore.api.types import Prompt, RewardStatus, Sample, Score
from rlcore.plugins.files import read
from rlcore.rollout import rewards as rewards_module
from rlcore.rollout.rewards import ERROR_KEY, RewardPool
from rlcore.rollout.score_check import Failure, checked_scores
from rlcore_machine import Forked, ForkServer
from rlcore_machine.connected_process import ConnectedProcess, message
from rlcore_testing.samples import sample_of

PLUGIN = '''
import os, re, signal, sys, time
from rlcore.api.types import Score

class Obedient:
    """Does what the text of the first sample says."""

    def __init__(self, config):
        self.build = os.getpid()

    def score(self, samples):
        getattr(self, samples[0].text)(samples[0].metadata.get("path"))
        print("a reward may print")
        return [Score(value=float(sample.index), parts={"pid": self.build}) for sample in samples]

    def fine(self, path): ...
    def raises(self, path): raise ZeroDivisionError("no luck")
    def exits(self, path): os._exit(7)
    def leaves_a_program(self, path):
        os.system("sleep 600 &")
        os._exit(7)

    def crashes(self, path): os.kill(os.getpid(), signal.SIGSEGV)
    def hungry(self, path): bytearray(2 << 30)
    def prints_torch(self, path): raise RuntimeError("torch" in sys.modules)

    def stubborn(self, path):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = os.fork()
        if child:
            with open(path, "w") as file:
                file.write(f"{os.getpid()} {child}")
        re.match(r"(a+)+$", "a" * 64 + "b")  # holds the interpreter's lock for years

class Unbuildable:
    def __init__(self, config):
        raise ValueError("no dictionary found")
'''


@pytest.fixture
def plugin(tmp_path: Path) -> PluginFile:
    path = tmp_path / "obedient.py"
    path.write_text(PLUGIN)
    file = read(path)
    import_plugin_file(file)
    return file


def pool(
    plugin: PluginFile,
    *,
    name: str = "Obedient",
    workers: int = 1,
    timeout: float = 60,
    memory_gib: float | None = None,
) -> RewardPool:
    part = RewardPart(name="obedient", factory=f"{plugin.module}:{name}", config=RewardConfig())
    return RewardPool([part], workers=workers, timeout=timeout, memory_gib=memory_gib, plugin_files=[plugin])


def group(order: str, *, size: int = 2, path: Path | None = None) -> list[Sample]:
    prompt = Prompt(prompt_id="p", text="question")
    metadata = {"path": str(path)} if path else {"kept": 1}
    return [
        sample_of((3, 4), prompt=prompt, prompt_ids=(1, 2), index=index, text=order, metadata=metadata)
        for index in range(size)
    ]


def assert_unscored(samples: Sequence[Sample], status: RewardStatus, reason: str) -> None:
    for sample in samples:
        assert sample.reward_status is status
        assert sample.score is None
        assert reason in sample.metadata[ERROR_KEY]


async def test_groups_are_scored_by_all_workers(plugin: PluginFile) -> None:
    async with pool(plugin, workers=2) as rewards:
        groups = await asyncio.gather(*(rewards.score(group("fine", size=3)) for _ in range(40)))
    assert len(groups) == 40
    for samples in groups:
        assert [sample.reward_status for sample in samples] == [RewardStatus.SCORED] * 3
        assert [sample.score.value for sample in samples if sample.score] == [0.0, 1.0, 2.0]
        assert samples[0].metadata == {"kept": 1}


async def test_an_exception_is_a_status_logged_once(
    plugin: PluginFile, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with pool(plugin) as rewards:
        for _ in range(3):
            assert_unscored(
                await rewards.score(group("raises")), RewardStatus.FAILED, "ZeroDivisionError: no luck"
            )
        good = await rewards.score(group("fine"))
    assert good[0].reward_status is RewardStatus.SCORED
    assert len(caplog.records) == 1
    assert "prompt 'p', sample 0: ZeroDivisionError: no luck" in caplog.text


@pytest.mark.parametrize(
    ("order", "how"), [("exits", "exit code 7"), ("leaves_a_program", "exit code 7"), ("crashes", "SIGSEGV")]
)
async def test_a_dead_worker_is_replaced(plugin: PluginFile, order: str, how: str) -> None:
    async with pool(plugin) as rewards:
        assert_unscored(await rewards.score(group(order)), RewardStatus.FAILED, how)
        assert (await rewards.score(group("fine")))[1].score is not None


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers take several groups at once as soon as they have judged one."""
    monkeypatch.setattr(rewards_module, "QUICK_S", math.inf)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("order", "status", "why"),
    [
        ("exits", RewardStatus.FAILED, "exit code 7"),
        ("raises", RewardStatus.FAILED, "ZeroDivisionError: no luck"),
        ("stubborn", RewardStatus.TIMED_OUT, "longer than 2 s"),
    ],
)
async def test_of_groups_sent_together_only_the_one_at_fault_fails(
    plugin: PluginFile, tmp_path: Path, order: str, status: RewardStatus, why: str
) -> None:
    async with pool(plugin, timeout=2) as rewards:
        await rewards.score(group("fine"))
        waiting = [group("fine"), group(order, path=tmp_path / "pids"), group("fine"), group("fine")]
        first, bad, *others = await asyncio.gather(*map(rewards.score, waiting))
    assert_unscored(bad, status, why)
    for samples in (first, *others):
        assert [sample.score.value for sample in samples if sample.score] == [0.0, 1.0]


@pytest.mark.usefixtures("quick")
async def test_stop_answers_all_groups_that_a_worker_has(plugin: PluginFile, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    async with pool(plugin) as rewards:
        await rewards.score(group("fine"))
        hanging = [rewards.score(group("stubborn", path=pids)) for _ in range(3)]
        scored = asyncio.gather(*hanging)
        await asyncio.to_thread(eventually, pids.exists)
        rewards.stop()
        for samples in await scored:
            assert_unscored(samples, RewardStatus.FAILED, "stopped")


async def test_content_that_cannot_be_sent_is_told(plugin: PluginFile) -> None:
    (sample,) = group("fine", size=1)
    odd = sample.but(metadata={"odd": lambda: 1})
    async with pool(plugin) as rewards:
        one, two = await asyncio.gather(
            rewards.score([odd]), rewards.score(group("fine")), return_exceptions=True
        )
        assert "pickle" in str(one)
        assert isinstance(two, list)
        assert two[0].score is not None


async def test_a_hanging_worker_is_killed_with_its_children_and_replaced(
    plugin: PluginFile, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    async with pool(plugin, timeout=2) as rewards:
        late = await rewards.score(group("stubborn", path=pids))
        assert_unscored(late, RewardStatus.TIMED_OUT, "longer than 2 s")
        eventually(lambda: gone(*map(int, pids.read_text().split())))
        assert (await rewards.score(group("fine")))[0].reward_status is RewardStatus.SCORED


@pytest.mark.parametrize("has_scored", [False, True])
async def test_rewards_that_always_take_too_long_end_the_run(
    plugin: PluginFile, tmp_path: Path, has_scored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a limit of minutes, all groups of a step would hold it up for hours."""
    monkeypatch.setattr(rewards_module, "TIMEOUTS_THAT_END", 2)
    async with pool(plugin, timeout=0.5) as rewards:
        if has_scored:
            await rewards.score(group("fine"))
        await rewards.score(group("stubborn", path=tmp_path / "pids"))
        again = rewards.score(group("stubborn", path=tmp_path / "pids"))
        if has_scored:
            assert_unscored(await again, RewardStatus.TIMED_OUT, "longer than 0.5 s")
        else:
            with pytest.raises(
                PluginError, match=r"no score: the reward took longer than 0\.5 s .*, 2 times in a row"
            ):
                await again


async def test_rewards_are_imported_once_however_many_workers_die(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, log = tmp_path / "counted.py", tmp_path / "imports"
    monkeypatch.setenv("IMPORTS", str(log))
    path.write_text(
        PLUGIN + '\nwith open(os.environ["IMPORTS"], "a") as log:\n    print(os.getpid(), file=log)'
    )
    file = read(path)
    import_plugin_file(file)
    log.unlink()
    async with pool(file, workers=2) as rewards:
        before = {sample.score.parts["pid"] for sample in await rewards.score(group("fine")) if sample.score}
        for _ in range(4):
            assert_unscored(await rewards.score(group("exits")), RewardStatus.FAILED, "exit code 7")
        (pid,) = map(int, log.read_text().split())
        assert float(pid) not in before
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: gone(pid))
        after = [await rewards.score(group("exits")) for _ in range(3)]
        assert (await rewards.score(group("fine")))[0].score is not None, after
    assert len(log.read_text().split()) == 2
    assert gone(*map(int, log.read_text().split()))


async def test_a_worker_that_cannot_be_forked_gives_no_score_and_is_tried_again(
    plugin: PluginFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> Forked:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async with pool(plugin) as rewards, asyncio.timeout(30):
        await rewards.score(group("exits"))
        with monkeypatch.context() as patch:
            patch.setattr(ForkServer, "fork", full)
            unscored = await rewards.score(group("fine"))
        assert_unscored(unscored, RewardStatus.FAILED, "did not start (OSError: [Errno 24] Too many")
        assert (await rewards.score(group("fine")))[0].reward_status is RewardStatus.SCORED


@pytest.mark.usefixtures("quick")
async def test_an_unforeseen_error_is_raised_to_all_who_wait(
    plugin: PluginFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def damaged(self: ConnectedProcess) -> object:
        raise pickle.UnpicklingError("damaged")

    async with pool(plugin) as rewards, asyncio.timeout(30):
        await rewards.score(group("fine"))
        monkeypatch.setattr(ConnectedProcess, "receive", damaged)
        waiting = [rewards.score(group("fine")) for _ in range(3)]
        errors = await asyncio.gather(*waiting, return_exceptions=True)
        assert [str(error) for error in errors] == ["damaged"] * 3
        late = await rewards.score(group("fine"))
    assert_unscored(late, RewardStatus.FAILED, "stopped")


async def test_stop_ends_a_worker_that_hangs(plugin: PluginFile, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    rewards = pool(plugin)
    await rewards.start()
    hanging = asyncio.create_task(rewards.score(group("stubborn", path=pids)))
    await asyncio.to_thread(eventually, lambda: pids.exists() and len(pids.read_text().split()) == 2)
    await asyncio.to_thread(rewards.stop)
    assert_unscored(await hanging, RewardStatus.FAILED, "stopped")
    eventually(lambda: gone(*map(int, pids.read_text().split())))
    rewards.stop()


async def test_a_worker_imports_no_torch(plugin: PluginFile) -> None:
    async with pool(plugin) as rewards:
        assert_unscored(await rewards.score(group("prints_torch")), RewardStatus.FAILED, "False")


async def test_a_fork_server_that_hangs_is_noticed_and_replaced(
    plugin: PluginFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pool(plugin) as rewards:
        (scored, _) = await rewards.score(group("fine"))
        assert scored.score is not None
        hung = psutil.Process(int(scored.score.parts["pid"])).parent()
        assert hung is not None
        hung.suspend()
        with monkeypatch.context() as patch:
            patch.setattr(rewards_module, "START_LIMIT_S", 0.5)
            await rewards.score(group("exits"))
            late = await rewards.score(group("fine"))
        assert_unscored(late, RewardStatus.FAILED, "did not start (it took longer than 0.5 s)")
        assert not hung.is_running()
        assert (await rewards.score(group("fine")))[0].score is not None


async def test_an_answer_that_breaks_off_is_the_end_of_its_process() -> None:
    whole = message([Score(value=1.0, per_token=(0.5,) * 9, parts={"a": 2.0})] * 3)
    for size in range(len(whole)):
        near, far = socket.socketpair()
        process = ConnectedProcess(Forked(os.pipe()[0]), near)
        with far:
            far.sendall(whole[:size])
        with pytest.raises(EOFError):
            await process.receive()
        process.close()


async def test_a_group_that_is_given_up_leaves_its_worker_ready(plugin: PluginFile) -> None:
    async with pool(plugin) as rewards:
        given_up = asyncio.create_task(rewards.score(group("fine")))
        await asyncio.sleep(0)
        given_up.cancel()
        fine = await rewards.score(group("fine", size=3))
    assert given_up.cancelled()
    assert [sample.score.value for sample in fine if sample.score] == [0.0, 1.0, 2.0]


async def test_a_reward_that_cannot_be_built_stops_the_start(plugin: PluginFile) -> None:
    rewards = pool(plugin, name="Unbuildable", workers=2)
    with pytest.raises(PluginError, match="'obedient' cannot be built: ValueError: no dictionary found"):
        await rewards.start()


DRIVER = """
import asyncio, json, sys
from rlcore import import_plugin_file
from rlcore.plugins.files import read
from pathlib import Path
from rlcore.rollout.rewards import RewardPool
from rlcore.api.part import RewardPart
from rlcore.api.types import Prompt, Sample

file = read(Path(sys.argv[1]))
import_plugin_file(file)
sample = Sample(prompt=Prompt(prompt_id="p", text=""), prompt_ids=(), group_id=0, index=0, rollout_id="r",
                text=sys.argv[2], metadata={"path": sys.argv[3]})
part = RewardPart(name="r", factory=f"{file.module}:Obedient")


async def main():
    async with RewardPool([part], workers=1, timeout=600, plugin_files=[file]) as rewards:
        (scored,) = await rewards.score([sample])
        print(json.dumps(scored.reward_status))


asyncio.run(main())
"""


async def test_a_worker_gets_no_more_memory_than_its_limit(plugin: PluginFile) -> None:
    async with pool(plugin, memory_gib=1) as rewards:
        hungry = await rewards.score(group("hungry"))
        fine = await rewards.score(group("fine"))
    assert all(one.metadata[ERROR_KEY].startswith("MemoryError (") for one in hungry)
    assert [one.reward_status for one in fine] == [RewardStatus.SCORED] * 2


def test_workers_die_with_their_parent(plugin: PluginFile, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, "-c", textwrap.dedent(DRIVER), plugin.path, "stubborn", str(pids)]
    with subprocess.Popen(argv, env=environment) as driver:
        eventually(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        driver.send_signal(signal.SIGKILL)
    eventually(lambda: gone(*map(int, pids.read_text().split())))


def test_what_a_reward_prints_stays_off_stdout(plugin: PluginFile) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, "-c", textwrap.dedent(DRIVER), plugin.path, "fine", ""]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(done.stdout) == "scored"
    assert "a reward may print" in done.stderr


class Fixed:
    """Gives what it was made with."""

    def __init__(self, *scores: object) -> None:
        self._scores = scores

    def score(self, samples: Sequence[Sample]) -> tuple[object, ...]:
        return self._scores


class Asynchronous:
    async def score(self, samples: Sequence[Sample]) -> list[Score]:
        return [Score(value=1.0)] * len(samples)


def test_an_async_reward_is_told_what_to_do() -> None:
    for bad in checked_scores(Asynchronous(), group("")):
        assert isinstance(bad, Failure)
        assert bad.reason == "score() returned a coroutine; expected a list of Scores, from a plain function"


class Number:
    def __float__(self) -> float:
        return 0.5


def test_scores_become_plain_floats() -> None:
    odd = Score(value=Number(), per_token=(1, True), parts={"a": 2})  # type: ignore[arg-type]  # on purpose
    plain = Score(value=0.5, per_token=(1.0, 1.0), parts={"a": 2.0})
    assert checked_scores(Fixed(odd), group("", size=1)) == [plain]


@pytest.mark.parametrize(
    ("score", "reason"),
    [
        (Score(value=math.nan), "value of a score is nan"),
        (Score(value=1e39), "value of a score is 1e+39, which is no finite number of 32 bits"),
        (Score(value=1, parts={"a": math.inf}), "part 'a' of a score is inf"),
        (Score(value=1, per_token=(0.0, -math.inf)), "per_token of a score is -inf"),
        (Score(value=1, per_token=(0.0,)), "1 values for 2 response tokens"),
        (Score(value="1"), "is '1', which is no finite number"),  # type: ignore[arg-type]  # on purpose
        (Score(value=np.array([1.0, 2.0])), "value of a score is a ndarray, which is no finite"),  # type: ignore[arg-type]  # on purpose
        (Score(value=10**400), "value of a score is an int, which is no finite number"),
        (Score(value=1, per_token=3.0), "the score has 3.0 as per_token and a dict as parts; expected"),  # type: ignore[arg-type]  # on purpose
        (Score(value=1, parts=None), "has None as per_token and None as parts; expected"),  # type: ignore[arg-type]  # on purpose
        (1.0, "1.0 is no Score"),
        (None, "None is no Score"),
    ],
)
def test_one_bad_score_fails_its_sample_alone(score: object, reason: str) -> None:
    bad, good = checked_scores(Fixed(score, Score(value=1)), group(""))
    assert isinstance(bad, Failure)
    assert reason in bad.reason
    assert good == Score(value=1.0)


@pytest.mark.parametrize(
    "score", [Score(value=1.01), Score(value=-0.01), Score(value=1, parts={"a": 500}), Score(value=math.nan)]
)
def test_a_score_outside_of_its_range_fails_its_sample_alone(score: Score) -> None:
    ends = Score(value=1.0, parts={"a": 0.0})
    bad, good = checked_scores(Fixed(score, ends), group(""), (0, 1))
    assert isinstance(bad, Failure)
    assert bad.kind == "number"
    assert good == ends


def test_a_value_for_a_masked_token_counts_at_the_last_live_one_before() -> None:
    def score(*values: float) -> Score:
        return Score(value=1.0, per_token=values)

    tool = replace(group("")[0], loss_mask=(1, 0))
    assert checked_scores(Fixed(score(0.5, 0.25)), [tool]) == [score(0.75, 0.0)]
    first = replace(tool, loss_mask=(0, 1))
    assert checked_scores(Fixed(score(0.0, 0.5)), [first]) == [score(0.0, 0.5)]
    [outcome] = checked_scores(Fixed(score(0.5, 0.5)), [first])
    assert isinstance(outcome, Failure)
    assert "a value for response token 0, which is masked, as are all before it" in outcome.reason


def test_a_failure_says_where() -> None:
    class Careless:
        def score(self, samples: Sequence[Sample]) -> list[Score]:
            return [Score(value=float(sample.prompt.metadata["gold"])) for sample in samples]

    [outcome] = checked_scores(Careless(), group("")[:1])
    assert isinstance(outcome, Failure)
    line = Careless.score.__code__.co_firstlineno + 1
    assert outcome.reason == f"KeyError: 'gold' ({__file__}, line {line})"


def test_a_wrong_number_of_scores_fails_the_group() -> None:
    outcomes = checked_scores(Fixed(Score(value=1)), group("", size=3))
    assert [outcome.reason for outcome in outcomes if isinstance(outcome, Failure)] == [
        "the reward gave 1 scores for 3 samples"
    ] * 3
