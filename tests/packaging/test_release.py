"""The wheels of `make dist`, and a package of every kind by `rlcore new`, in an environment of their own."""

import importlib.metadata
import json
import os
import re
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from command import rows
from environments import environment, install, offered

from rlcore_new.package import kinds
from rlcore_testing.programs import ran

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 400
SMALL = ("--steps", "2", "--prompts-per-step", "4", "--group-size", "4", "--eval-prompts", "2")
PARTS = (
    *("advantage", "loss", "correction", "filter", "generator", "reward", "producer", "model_hook"),
    *("tracker", "callback", "engine", "cluster"),
)
"""Kinds whose flag is their own name, which one run takes together."""
ELSEWHERE = ("algorithm", "model", "source", "value_loss", "trainer", "command")
"""The other kinds: each has a flag of its own in that run, or a test of its own."""


def call(folder: Path, *command: Path | str) -> str:
    """What a command writes, started in `folder` as a user would, without anything of the tree."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RLCORE"))}
    done = ran(
        *map(str, command),
        limit_s=LIMIT_S,
        cwd=folder,
        env={**kept, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make dist` makes."""
    folder = tmp_path_factory.mktemp("dist")
    call(ROOT, sys.executable, ROOT / "scripts/dist.py", folder)
    return folder


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, third_party: Path, released: Path) -> Path:
    """An environment with the released wheels, from their folder."""
    folder = tmp_path_factory.mktemp("installed") / "env"
    environment(folder, third_party)
    install(folder, *map(name_of, released.glob("*.whl")), index=released)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, bare: Path) -> Mapping[str, Path]:
    """A package of each kind, called my_KIND, made by what is installed there."""
    root = tmp_path_factory.mktemp("made")
    make = """
import sys
from rlcore_cli.main import run
from rlcore_new.package import kinds
sys.exit(any(run(["new", kind, f"my_{kind}", "--license", "MIT"]) for kind in kinds()))
"""
    call(root, bare / "bin/python", "-c", make)
    return {kind: root / f"rlcore-my-{kind.replace('_', '-')}" for kind in kinds()}


@pytest.fixture(scope="module")
def installed(bare: Path, released: Path, made: Mapping[str, Path]) -> Path:
    """The environment, with the wheels of these packages too."""
    build = "import hatchling.build, sys; hatchling.build.build_wheel(sys.argv[1])"
    for package in made.values():
        call(package, sys.executable, "-c", build, released)
    install(bare, *(package.name for package in made.values()), index=released)
    return bare


def name_of(wheel: Path) -> str:
    return wheel.name.partition("-")[0].replace("_", "-")


def train(installed: Path, folder: Path, *flags: str) -> list[dict[str, object]]:
    """The metrics of a run of two steps, without Ray unless `flags` choose the cluster."""
    cluster = () if "--cluster" in flags else ("--cluster", "processes")
    call(folder, installed / "bin/rlcore", "train", *flags, *SMALL, *cluster, "--run-dir", "run")
    found = rows(folder / "run")
    assert [row["step"] for row in found] == [0, 1, 2]
    assert all(float(row["train/grad_norm"]) > 0 for row in found[1:])
    return found


def test_every_sdist_has_what_its_wheel_has_and_both_the_license(released: Path, installed: Path) -> None:
    sdists = list(released.glob("*.tar.gz"))
    license_text = (ROOT / "LICENSE").read_bytes()
    libraries = ("machine", "sandbox", "toolkit", "testing")
    members = ["core", "cli", *libraries, *ROOT.glob("plugins/*/*/pyproject.toml")]
    assert len(sdists) == len(members)
    for sdist in sdists:
        name = sdist.name.removesuffix(".tar.gz")
        with tarfile.open(sdist) as archive, zipfile.ZipFile(released / f"{name}-py3-none-any.whl") as wheel:
            sources = {member.removeprefix(f"{name}/src/") for member in archive.getnames()}
            files = {file for file in wheel.namelist() if ".dist-info/" not in file}
            assert wheel.read(f"{name}.dist-info/licenses/LICENSE") == license_text
        assert files <= sources, name
        assert files


def test_everything_is_listed_and_comes_from_the_wheels(installed: Path, released: Path) -> None:
    listed, broken = offered(installed)
    libraries = {"rlcore", "rlcore-machine", "rlcore-sandbox", "rlcore-toolkit", "rlcore-testing"}
    assert listed == {name_of(wheel) for wheel in released.glob("*.whl")} - libraries
    assert not broken
    where = "import rlcore, rlcore_my_loss; print(rlcore.__file__, rlcore_my_loss.__file__)"
    assert call(installed, installed / "bin/python", "-c", where).count(str(installed)) == 2
    light = f"""
import importlib, sys
for kind in {kinds()}:
    importlib.import_module(f"rlcore_my_{{kind}}.plugin")
heavy = {{"torch", "ray", "transformers", "megatron"}} & set(sys.modules)
assert not heavy, heavy
"""
    call(installed, installed / "bin/python", "-c", light)
    [dist] = importlib.metadata.distributions(
        name="rlcore-my-loss", path=[str(next(installed.glob("lib/*/site-packages")))]
    )
    assert dist.metadata["License-Expression"] == "MIT"


def test_the_demo_runs_for_two_steps(installed: Path, tmp_path: Path) -> None:
    assert train(installed, tmp_path, "--algo", "grpo", "--model", "qwen3")


def test_every_kind_is_in_a_run() -> None:
    assert {*kinds()} == {*PARTS, *ELSEWHERE}


def test_a_run_of_new_parts_only(installed: Path, tmp_path: Path) -> None:
    chosen = [f for kind in PARTS for f in (f"--{kind.replace('_', '-')}", f"my_{kind}")]
    found = train(
        *(installed, tmp_path, "--algo", "my_algorithm", "--model", "my_model", "--task", "my_source"),
        *chosen,
    )
    last, run = found[-1], tmp_path / "run"
    assert last["rollout/left_out"] == 2, "the producer hands on half of four groups"
    assert last["train/trust"] == pytest.approx(1.0, abs=1e-3)
    assert {"train/at_ceiling", "generator/attempts"} <= last.keys()
    assert len((run / "my_tracker.csv").read_text().splitlines()) == 2
    used = json.loads((run / "provenance.jsonl").read_text().splitlines()[0])["plugins"]
    assert {f"my_{kind}" for kind in (*PARTS, "algorithm", "model", "source")} <= used.keys()
    best = call(tmp_path, installed / "bin/rlcore", "my-command", "run")
    assert best.startswith("rollout/reward_mean: ")


def test_a_critic_with_the_new_loss(installed: Path, tmp_path: Path) -> None:
    found = train(installed, tmp_path, "--algo", "ppo", "--model", "qwen3", "--value-loss", "my_value_loss")
    assert "critic/far" in found[-1]


def test_the_new_trainer(installed: Path, tmp_path: Path) -> None:
    train(installed, tmp_path, "--algo", "grpo", "--model", "qwen3", "--trainer", "my_trainer")
    assert 'name = "my_trainer"' in (tmp_path / "run/run.toml").read_text()


def test_rlcore_checks_each_package(installed: Path, tmp_path: Path) -> None:
    """`rlcore plugins check`, in one process; the suites of the three others take a minute: see below."""
    light = sorted({*kinds()} - {"engine", "model", "trainer"})
    check = f"""
import sys
from rlcore_cli.main import run
sys.exit(any(run(["plugins", "check", f"my_{{kind}}"]) for kind in {light}))
"""
    said = call(tmp_path, installed / "bin/python", "-c", check)
    assert len(re.findall(r"^\d+ hold, 0 fail", said, re.MULTILINE)) == len(light)


def test_the_tests_of_each_package_pass(installed: Path, made: Mapping[str, Path]) -> None:
    config = made["reward"] / "pyproject.toml"
    tests = [package / "tests" for package in made.values()]
    said = call(
        made["reward"], installed / "bin/python", "-m", "pytest", "-q", "-c", config, "--rootdir", ".", *tests
    )
    assert " passed" in said
    assert "failed" not in said
