"""`rlcore doctor`: what is fine, and what to do on machines that are not."""

import json
import os
import resource
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from program import Program
from refusals import Case, cases

from rlcore_doctor import machine

PROGRAM = "from rlcore_cli.main import main; main()"
QUICK = ["doctor", "--cluster", "processes", "--json"]
ENGINE = """
from collections.abc import Iterable
from rlcore import Component, Diagnosis, EngineConfig, MissingEngineError, hookimpl

class MineConfig(EngineConfig):
    python: str = "here"
    def diagnose(self):
        yield Diagnosis(what="server", found=f"found {self.python}")
        if self.python == "gone":
            raise MissingEngineError("mine is not installed.")
        if self.python == "odd":
            raise ValueError("what?")

@hookimpl
def rlcore_engines() -> Iterable[Component]:
    yield Component(name="mine", factory="nowhere:Mine", summary="mine", config=MineConfig)
"""


def lines(out: str) -> dict[str, dict[str, Any]]:
    return {one["what"]: one for one in json.loads(out)["lines"]}


def in_shell(command: str, **environment: str) -> tuple[int, dict[str, dict[str, Any]]]:
    done = subprocess.run(
        ["bash", "-c", f"{command} exec {sys.executable} -c '{PROGRAM}' {' '.join(QUICK)}"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, lines(done.stdout)


def test_on_a_sound_machine_each_line_is_ok(program: Program) -> None:
    out = program("doctor", "--cluster", "processes")
    for what in ("python", "torch", "memory", "open files", "loopback", "plugins"):
        assert f" {what}: " in out
    assert "STOP" not in out


def test_a_machine_that_is_not_sound(tmp_path: Path) -> None:
    """A low limit of open files, a TMPDIR that nothing can be written to, a torch that cannot be imported."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise ImportError('libcudart.so: cannot open')")
    code, found = in_shell("ulimit -S -n 300;", TMPDIR="/proc", PYTHONPATH=str(tmp_path))
    assert code == 1
    bad = {what: one for what, one in found.items() if one["mark"] == "STOP"}
    assert set(bad) >= {"open files", "temporary files", "torch"}
    assert "`ulimit -n " in bad["open files"]["remedy"]
    assert "TMPDIR=/proc" in bad["temporary files"]["found"]
    assert "libcudart" in bad["torch"]["found"]


def test_what_differs_from_a_lock(tmp_path: Path, program: Program) -> None:
    lock = tmp_path / "lock.txt"
    pins = [f"{name}=={version(name)}" for name in ("click", "psutil")]
    for added, found in (
        ([], {"lock": f"all 2 packages have the versions of {lock}"}),
        (
            ["absent-package==1.0", "ray==0.1  # an old one"],
            {
                "lock, missing": "absent-package==1.0",
                "lock, versions": f"ray is {version('ray')}, not 0.1",
            },
        ),
    ):
        lock.write_text("\n".join(["# versions", *pins, *added]))
        said = lines(program(*QUICK, "--lock", str(lock)))
        assert {what: one["found"] for what, one in said.items() if what.startswith("lock")} == found
    lock.write_text("click>=8")
    assert "line 1 is 'click>=8'" in program.refused(*QUICK, "--lock", str(lock))


@pytest.mark.parametrize(
    ("hard", "said"),
    [(resource.RLIM_INFINITY, "`ulimit -n 65536`"), (4096, "`ulimit -n 4096`"), (256, "Only root")],
)
def test_the_remedy_for_few_files_can_be_typed(monkeypatch: pytest.MonkeyPatch, hard: int, said: str) -> None:
    """A user can raise the limit up to the hard one."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, hard))
    (found,) = machine.files()
    assert said in found.remedy


def test_only_the_chosen_cluster_is_asked(tmp_path: Path, program: Program) -> None:
    """To ask one may take seconds, and a run has one."""
    plugin = tmp_path / "mine.py"
    cluster = ENGINE.replace("EngineConfig", "ClusterConfig").replace("rlcore_engines", "rlcore_clusters")
    plugin.write_text(cluster)
    assert not [
        what for what in lines(program(*QUICK, "--plugin", str(plugin))) if what.startswith("cluster")
    ]
    asked = ["--cluster", "mine", "--cluster.python", "gone", "--plugin", str(plugin)]
    found = lines(program("doctor", "--json", *asked, code=1))
    assert found["cluster mine"]["found"] == "cannot be used here"


@pytest.mark.parametrize(
    ("args", "code", "what", "said"),
    [
        ([], 0, "engine mine, server", "found here"),
        (["--engine", "mine", "--engine.python", "there"], 0, "engine mine, server", "found there"),
        (["--engine", "mine", "--engine.python=gone"], 1, "engine mine", "cannot be used here"),
        (["--engine", "mine", "--engine.python=odd"], 0, "engine mine", "ValueError: what?"),
    ],
)
def test_a_part_answers_for_itself(
    tmp_path: Path, program: Program, args: list[str], code: int, what: str, said: str
) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text(ENGINE)
    assert said in lines(program(*QUICK, "--plugin", str(plugin), *args, code=code))[what]["found"]


def test_broken_plugins_are_named(tmp_path: Path, program: Program) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("import no_such_module_here\n")
    found = lines(program(*QUICK, "--plugin", str(bad)))["plugin bad.py"]
    assert "No module named 'no_such_module_here'" in found["found"]
    assert "-p no:bad.py" in found["remedy"]


def test_settings_that_cannot_be_imported_are_told(tmp_path: Path, program: Program) -> None:
    file = tmp_path / "lazy.py"
    lazy = "name='lazy', factory='nowhere:R', summary='lazy'"
    file.write_text(
        "from rlcore import Component, RewardAdapter, hookimpl\n"
        f"@hookimpl\ndef rlcore_rewards(): yield Component({lazy}, config='nowhere:C')\n"
        f"@hookimpl\ndef rlcore_clusters(): yield Component({lazy}, config='nowhere:C')\n"
        f"@hookimpl\ndef rlcore_commands(): yield Component({lazy})\n"
        "@hookimpl\ndef rlcore_reward_adapters():\n"
        "    yield RewardAdapter(parameters=(frozenset('x'),), factory_of='here:make', config='nowhere:C')\n"
    )
    told = lines(program(*QUICK, "--plugin", str(file)))
    for what in ("cluster lazy", "command lazy", "reward here:make"):
        assert "nowhere" in told[what]["found"]
        assert told[what]["mark"] == "note"
    found = told["reward lazy"]
    assert " 'lazy' cannot be loaded from 'nowhere:C': No module named 'nowhere'" in found["found"]


def test_a_default_without_settings_and_a_name_that_is_taken_stop(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: Program
) -> None:
    """All other lines are there too."""
    file = tmp_path / "mine.py"
    file.write_text(ENGINE.replace("config=MineConfig", "config='nowhere:C', default=True"))
    found = lines(program(*QUICK, "-p", "no:local", "--plugin", str(file), code=1))
    assert {"loopback", "plugins"} <= found.keys()
    assert "nowhere" in found["engine mine"]["found"]
    assert found["engine mine"]["mark"] == "STOP"
    file.write_text(ENGINE.replace('"mine"', '"local"'))
    assert lines(program(*QUICK, "--plugin", str(file), code=1))["plugins"]["mark"] == "STOP"


def test_a_default_that_is_offered_twice_stops(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: Program
) -> None:
    info = tmp_path / "rlcore_twice-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rlcore-twice\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rlcore]\ntwice = offers_twice\n")
    (tmp_path / "offers_twice.py").write_text(ENGINE.replace('"mine"', '"local"'))
    monkeypatch.syspath_prepend(str(tmp_path))
    found = lines(program(*QUICK, code=1))["engine"]
    assert found["found"] == "the default is offered twice"
    assert "-p no:local or -p no:twice" in found["remedy"]


@cases("doctor")
def test_bad_input_is_refused(program: Program, case: Case) -> None:
    case.check(program.refused(*QUICK, *case.given))
