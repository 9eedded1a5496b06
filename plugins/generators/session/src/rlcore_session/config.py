"""The settings of the generator `session`."""

from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from rlcore import GeneratorConfig, Neighbor, RunConfig, absolute_path
from rlcore_toolkit import ToolFormat


class SessionConfig(GeneratorConfig):
    """Which agent, and how far it may go."""

    agent: str = Field(
        "", description="the agent: an async function, `module:function` or `path/to/file.py:function`"
    )
    command: tuple[str, ...] = Field(
        (), description="the agent: a program and its arguments, started for each sample"
    )
    keep_environment: tuple[str, ...] = Field(
        (),
        description="names of environment variables that the program gets, besides those that hold no "
        "secrets, such as PATH and HOME",
    )
    reward: Literal["run", "agent"] = Field(
        "run", description="who scores: the run's reward, on the final answer, or the agent itself"
    )
    address: str = Field(
        "127.0.0.1",
        description="address that the endpoint listens on; agents on other hosts need another one",
    )
    port: int = Field(0, ge=0, le=65535, description="port that the endpoint listens on; 0: a free one")
    public_url: str = Field(
        "",
        pattern=r"^(https?://[^/\s]\S*)?$",
        description="what agents are told as the endpoint, such as a proxy's https URL; empty: its address",
    )
    timeout: float = Field(600, gt=0, description="seconds that an agent may take; then it is ended")
    max_agents: int = Field(64, ge=1, description="agents that work at the same time; others wait")
    max_turns: int = Field(100, ge=1, description="answers that an agent may ask for in one trajectory")
    tool_format: ToolFormat | None = Field(
        None, description="how the model writes tool calls; none: as its chat template says"
    )

    @field_validator("agent")
    @classmethod
    def _found_again(cls, agent: str) -> str:
        place, colon, name = agent.rpartition(":")
        return f"{absolute_path(place)}{colon}{name}" if place.endswith(".py") else agent

    @field_validator("address")
    @classmethod
    def _is_an_address(cls, address: str) -> str:
        return str(ip_address(address))

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        if ip_address(self.address).is_unspecified and not self.public_url:
            raise ValueError(
                f"expected --generator.public-url beside --generator.address {self.address}, at which no "
                "agent can ask"
            )
        return self

    @model_validator(mode="after")
    def _one_agent(self) -> Self:
        if bool(self.agent) == bool(self.command):
            raise ValueError(
                "expected an agent: either --generator.agent MODULE:FUNCTION or --generator.command PROGRAM"
            )
        if self.keep_environment and not self.command:
            raise ValueError(
                "keep_environment is of a program; a function runs in a process of rlcore, with all of its "
                "environment"
            )
        return self

    def complaints(self, name: str, run: RunConfig, neighbors: Sequence[Neighbor]) -> Iterable[str]:
        """A port or a URL belongs to one endpoint, and each rollout worker has its own."""
        workers = run.serving.rollout_workers
        if workers > 1 and (self.port or self.public_url):
            given = "--generator.port" if self.port else "--generator.public-url"
            yield (
                f"--rollout-workers: found {workers} with {given}, but each of them has an endpoint and a "
                f"port of its own; expected at most 1, or no {given}."
            )
