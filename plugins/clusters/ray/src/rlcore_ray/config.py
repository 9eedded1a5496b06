"""The settings of the cluster."""

from collections.abc import Iterable
from typing import ClassVar, Self

from pydantic import Field, model_validator

from rlcore import ClusterConfig, Diagnosis


class RayConfig(ClusterConfig):
    """Which Ray."""

    libraries: ClassVar[tuple[str, ...]] = ("ray",)

    address: str | None = Field(
        default=None, description="HOST:PORT of a running Ray; none: the run starts a Ray of its own"
    )
    hosts: int | None = Field(
        default=None,
        ge=1,
        description="wait until this many hosts have joined the Ray at `address`, 5 minutes at most",
    )

    @model_validator(mode="after")
    def _check_hosts(self) -> Self:
        if self.hosts is not None and self.address is None:
            raise ValueError("hosts needs address: a Ray of the run's own has this host alone")
        return self

    def diagnose(self) -> Iterable[Diagnosis]:
        """Whether Ray starts, or answers at `address`."""
        from rlcore_ray.diagnosis import diagnoses

        yield from diagnoses(self.address)
