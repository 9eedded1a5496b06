"""The settings of the generator, the reward and the source."""

from typing import Literal

from pydantic import Field, field_validator

from rlcore import Config, GeneratorConfig, Json, RewardConfig, absolute_path


class TurnsConfig(GeneratorConfig):
    """The limits of an episode."""

    max_environments: int | None = Field(
        None, ge=1, description="environments at the same time; others wait; none: no bound"
    )
    max_turns: int = Field(16, ge=1, description="answers of the policy; then the sample is truncated")
    max_turn_tokens: int | None = Field(
        None, ge=1, description="tokens of one answer; none: what is left of --max-response-tokens"
    )
    reset_timeout: float = Field(30.0, gt=0, description="seconds that a reset may take")
    step_timeout: float = Field(30.0, gt=0, description="seconds that a step may take")
    observation: str = Field(
        "{observation}",
        pattern=r"\{observation\}",
        description="the text around an observation, if the prompt is a text",
    )


class EnvironmentConfig(TurnsConfig):
    """Which environment, and its limits."""

    kind: Literal["class", "gymnasium", "openenv", "textarena", "verifiers"] = Field(
        "class",
        description="what `environment` names: a class of your own, or an environment of that package",
    )
    environment: str = Field(
        min_length=1,
        description="module:Class or path/to/file.py:Class, the id in the package's registry, or an OpenEnv "
        "server's URL",
    )
    options: dict[str, Json] = Field(
        default_factory=dict, description="keyword arguments of the class or of the package's make function"
    )


class HarborConfig(TurnsConfig):
    """The limits of a trial."""

    max_environments: int | None = Field(16, ge=1, description="trials at the same time; others wait")
    step_timeout: float = Field(
        600.0, gt=0, description="seconds that the tests may take, if the task does not say fewer"
    )
    command_seconds: float = Field(30.0, gt=0, description="seconds that a command may take")
    memory_mib: int = Field(2048, ge=64, description="address space of each process of a command")
    processes: int = Field(64, ge=1, description="processes and threads of a command at one time")
    files_mib: int = Field(256, ge=1, description="size of a file that a command may write")
    output_chars: int = Field(
        4000, ge=1, description="characters of a command's output that the policy reads"
    )


class EnvironmentRewardConfig(RewardConfig):
    """Where the rewards count."""

    credit: Literal["turn", "episode"] = Field(
        "turn",
        description="which token gets a reward; turn: the last one of each turn; episode: the last one of "
        "all, the sum",
    )


class EpisodesConfig(Config):
    """A prompt and seeds."""

    text: str = Field(min_length=1, description="text before the first observation")
    chat: bool = Field(False, description="send the text as the user's message of a chat")
    size: int = Field(10_000, ge=2, le=1_000_000, description="seeds, held-out ones included")
    held_out: int = Field(256, ge=1, description="seeds that are only evaluated")
    first_seed: int = Field(0, ge=0, lt=2**31, description="the smallest seed")


class HarborTasksConfig(Config):
    """Folders of tasks."""

    path: str = Field(
        min_length=1, description="the folder of a task, or a folder with several of them at any depth"
    )
    images: str | None = Field(
        None,
        description="folder with an unpacked image for each task, by its name, in place of this machine's "
        "system",
    )
    ignore_run: bool = Field(
        False, description="play tasks whose Dockerfile has RUN without it: this machine has what they need"
    )
    skip_unfit: bool = Field(False, description="leave out tasks that need more than a sandbox, and say so")
    held_out: int = Field(0, ge=0, description="tasks that are only evaluated: the last ones by name")
    how: str = Field(
        "You work in a Linux shell. Write one command or script at a time, in a block that begins with "
        "```bash and ends with ```; you then read its output. Each one starts in the same folder. When the "
        "task is done, answer without a block.",
        description="text before a task's instruction",
    )

    _absolute = field_validator("path", "images")(absolute_path)


class VerifiersRowsConfig(Config):
    """An environment of verifiers whose rows are asked."""

    environment: str = Field(min_length=1, description="the id of an environment package")
    options: dict[str, Json] = Field(
        default_factory=dict, description="keyword arguments of the package's load_environment"
    )
