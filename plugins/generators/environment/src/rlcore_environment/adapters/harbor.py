"""Tasks of Harbor: the policy works in a shell of a sandbox, and the task's own tests give the reward."""

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from rlcore import ConfigError, Sample
from rlcore_environment.config import HarborConfig
from rlcore_environment.generator import EpisodeGenerator
from rlcore_environment.harbor_task import HarborTask, read_task
from rlcore_environment.harbor_trial import HarborTrial
from rlcore_environment.protocol import Step
from rlcore_environment.source import IGNORE_RUN, IMAGE, TASK
from rlcore_sandbox import ProgramEnd, Sandbox, SandboxLimits
from rlcore_toolkit import fenced_blocks

T = TypeVar("T")
SHELLS = frozenset({"", "bash", "sh", "shell"})


class HarborEnvironment:
    """One trial. An answer with a fenced command runs it; one without is the end, and the tests run."""

    def __init__(self, config: HarborConfig) -> None:
        self._config = config
        self._trial: HarborTrial | None = None
        self._thread = ThreadPoolExecutor(1)  # a sandbox belongs to one

    async def reset(self, sample: Sample) -> str:
        """Prepare the sandbox; the prompt has said everything."""
        metadata = sample.prompt.metadata
        if TASK not in metadata:
            raise ValueError("the prompt has no task: expected --task harbor")
        image = metadata.get(IMAGE)
        folder, root = Path(str(metadata[TASK])), Path(str(image)) if image else None
        task = read_task(folder, root, ignore_run=bool(metadata.get(IGNORE_RUN)))
        await self._do(lambda: self._begin(task))
        return ""

    async def step(self, text: str) -> Step:
        """Run the last command of the answer, or the tests."""
        command = command_of(text)
        if command is None:
            return await self.finish()
        trial = self._open()
        return Step(observation=self._observation(await self._do(lambda: trial.run(command))))

    async def finish(self) -> Step:
        """The tests, of whatever has been reached."""
        trial, seconds = self._open(), self._config.step_timeout
        rewards = await self._do(lambda: trial.verify(seconds))
        # the one of that name, or the mean of all
        reward = rewards["reward"] if "reward" in rewards else sum(rewards.values()) / len(rewards)
        metrics = {re.sub(r"\W", "_", name): value for name, value in rewards.items()}
        return Step(reward=reward, done=True, metrics=metrics)

    async def close(self) -> None:
        """End the sandbox."""
        try:
            await self._do(self._end)
        finally:
            self._thread.shutdown(wait=False)

    def _begin(self, task: HarborTask) -> None:
        """In the thread, so that a reset that was given up leaves nothing that `close` does not find."""
        self._trial = HarborTrial(task, limits(self._config))

    def _end(self) -> None:
        if self._trial is not None:
            self._trial.close()

    async def _do(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _open(self) -> HarborTrial:
        assert self._trial is not None, "reset comes first"
        return self._trial

    def _observation(self, done: ProgramEnd) -> str:
        most = self._config.output_chars
        shown = done.stdout if len(done.stdout) <= most else f"{done.stdout[:most]}\n[cut]"
        ends = {
            "ended": f"exit code {done.code}",
            "timeout": f"ended after {self._config.command_seconds:g} s",
            "output": "ended, because it wrote too much",
        }
        return f"{shown.rstrip()}\n[{ends[done.how]}]".lstrip()


class HarborGenerator(EpisodeGenerator):
    """The turns of `environment`, with tasks of Harbor."""

    def __init__(self, config: HarborConfig) -> None:
        """Raises `ConfigError` where commands cannot be isolated."""
        with Sandbox(limits(config)) as sandbox:
            fault = sandbox.fault()
        if fault:
            raise ConfigError(
                f"--generator harbor: commands of the policy cannot be isolated here ({fault}); run where "
                "namespaces are allowed (as root with CAP_SYS_ADMIN, or with user namespaces)."
            )
        super().__init__(config, lambda: HarborEnvironment(config), "harbor")


def limits(config: HarborConfig) -> SandboxLimits:
    """The limits of a trial's sandbox."""
    limits = {name: getattr(config, name) for name in ("memory_mib", "processes", "files_mib")}
    return SandboxLimits(seconds=config.command_seconds, output_kib=1024, **limits)


def command_of(text: str) -> str | None:
    """The last fenced block of a shell."""
    blocks = [block for language, block in fenced_blocks(text) if language in SHELLS]
    return blocks[-1] if blocks else None
