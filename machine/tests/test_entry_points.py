"""The reader finds what `importlib.metadata` finds."""

import importlib.metadata
import sys
import zipfile
from pathlib import Path

import pytest

from rlcore_machine import entry_points

GROUP = "rlcore.test"
POINTS = """
# [a comment] with brackets
[console_scripts]
program = a.program:main
[rlcore.test]
x1 = a.plugin [cuda]
  x2=a.plugin:part.of[ cuda , x ]
# see [the guide]
; = odd

x3 = a.third
 [rlcore.tests]
x4 = a.fourth
[rlcore.test]
x5 = a.fifth
"""


def metadata(name: str, version: str) -> str:
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nName: not this\n"


def test_the_reader_finds_what_the_standard_library_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, archive = tmp_path / "first", tmp_path / "second", tmp_path / "archive.zip"
    for folder, name, version, header, points in (
        (first, "an_a-1.0.dist-info", "1.0", "METADATA", POINTS),
        (first, "b.egg-info", "2.0", "PKG-INFO", f"[{GROUP}]\ny = b\n[other]\ny2 = b"),
        (second, "An.A-0.9.dist-info", "0.9", "METADATA", f"[{GROUP}]\nhidden = a"),
    ):
        (folder / name).mkdir(parents=True)
        dist = name.partition("-")[0].partition(".egg")[0].lower().replace(".", "_")
        (folder / name / header).write_text(metadata(dist, version))
        (folder / name / "entry_points.txt").write_text(points)
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("c-3.0.dist-info/METADATA", metadata("c", "3.0"))
        packed.writestr("c-3.0.dist-info/entry_points.txt", f"[{GROUP}]\r\nz = c:plugin [x]\r\n")
        packed.writestr("an_a-0.8.dist-info/METADATA", metadata("an_a", "0.8"))
        packed.writestr("an_a-0.8.dist-info/entry_points.txt", f"[{GROUP}]\nhidden = a")
    (tmp_path / "text.pth").write_text("no archive")
    paths = [first, second, archive, tmp_path / "text.pth", tmp_path / "gone"]
    monkeypatch.setattr(sys, "path", [*map(str, paths), *sys.path])
    expected = {
        (point.name, point.value.partition("[")[0].strip(), point.dist.name, point.dist.version)
        for point in importlib.metadata.entry_points(group=GROUP)
        if point.dist is not None
    }
    found = [(point.name, point.value, point.dist, point.version) for point in entry_points(GROUP)]
    assert {name for name, *_ in expected} >= {"x1", "x2", "x3", "x5", "y", "z"}
    assert sorted(found) == sorted(expected)
