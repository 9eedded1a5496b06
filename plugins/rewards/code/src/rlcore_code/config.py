"""Settings of the reward `code`."""

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from rlcore import RewardConfig, absolute_path


class CodeConfig(RewardConfig):
    """Settings of `code`."""

    value_range: ClassVar[tuple[float, float] | None] = (0, 1)

    value: Literal["all", "share"] = Field(
        "all", description="the score: 1 where all tests pass, else 0; or the share of tests that pass"
    )
    tolerance: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="how far a number in the output may be from the expected one, beyond 1 as a share of it",
    )
    reference: str = Field(
        "reference",
        description="key of the metadata with a program that passes the tests, or a list of such, which is "
        "tried before the run starts; empty: none",
    )
    seconds: float = Field(4.0, gt=0, le=600, description="time limit of one test, by the clock")
    memory_mib: int = Field(512, ge=64, le=65536, description="address space of each process of a program")
    processes: int = Field(4, ge=1, le=1024, description="processes and threads of a program at one time")
    files_mib: int = Field(16, ge=1, le=4096, description="all that a program may write, into its own /tmp")
    output_kib: int = Field(256, ge=1, le=65536, description="output of a program; more is a failure")
    python: str | None = Field(
        None, description="interpreter of the programs; none: the one that rlcore's environment was made of"
    )
    allow_unisolated: bool = Field(
        False,
        description="where the kernel gives no namespaces, run programs with limits and a system-call filter "
        "only: they may then do what you may, delete files, kill processes and read the environment too",
    )

    _absolute = field_validator("python")(absolute_path)
