"""Distributions that exist on disk and nowhere else."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

Install = Callable[..., str]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """`install(name, body)`: a distribution `rlcore-<name>` with one plugin module; its module's name."""
    monkeypatch.delenv("RLCORE_PLUGINS", raising=False)
    monkeypatch.delenv("RLCORE_STRICT_PLUGINS", raising=False)
    numbers = itertools.count()

    def install(
        name: str,
        body: str,
        *,
        dist: str | None = None,
        version: str = "1.2.3",
        requires: Sequence[str] = (),
    ) -> str:
        site = tmp_path / f"site{next(numbers)}"
        dist = dist or f"rlcore-{name}"
        module = f"{dist.replace('-', '_')}_{tmp_path.name}".replace("-", "_")
        info = site / f"{dist.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        asked = "".join(f"Requires-Dist: {one}\n" for one in requires)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n{asked}")
        (info / "entry_points.txt").write_text(f"[rlcore]\n{name} = {module}\n")
        (site / f"{module}.py").write_text(
            "from rlcore.api.hookspecs import hookimpl\n"
            "from rlcore.api.records import Algorithm, Component, ModelFamily, Source\n" + body
        )
        monkeypatch.syspath_prepend(str(site))
        return module

    return install
