"""The settings of the cluster."""

from collections.abc import Iterable
from typing import ClassVar

from pydantic import Field

from rlcore import ClusterConfig, Diagnosis


class RayConfig(ClusterConfig):
    """Which Ray."""

    libraries: ClassVar[tuple[str, ...]] = ("ray",)

    address: str | None = Field(
        default=None,
        description="HOST:PORT of a running Ray; none: the run starts a Ray of its own",
    )

    def diagnose(self) -> Iterable[Diagnosis]:
        """Whether Ray starts, or answers at `address`."""
        from rlcore_ray.diagnosis import diagnoses

        yield from diagnoses(self.address)
