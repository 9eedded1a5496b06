"""A plugin file in another process: its parts resolve and its configs unpickle."""

import pickle
import sys
from pathlib import Path

import pytest

from rlcore import Kind, Part, PluginError, import_plugin_file
from rlcore.plugins import files
from rlcore.plugins.loader import Switches, load
from rlcore_testing.programs import ran

PLUGIN = '''
from pydantic import Field
from rlcore.api.part_config import RewardConfig
from rlcore.api.hookspecs import hookimpl
from rlcore.api.records import Component

class Settings(RewardConfig):
    """Settings."""
    weight: float | None = Field(2.0, description="a weight")

class Score:
    def __init__(self, config: Settings) -> None:
        self.weight = config.weight

@hookimpl
def rlcore_rewards():
    yield Component(name="weighted", factory=f"{__name__}:Score", summary="x", config=Settings)
'''

WORKER = """
import pickle, sys
from rlcore import install_plugin_files
contents, parts = pickle.load(open(sys.argv[1], "rb"))
install_plugin_files(pickle.loads(contents))
print(pickle.loads(parts).build().weight)
"""


def test_a_worker_gets_the_file_by_content(tmp_path: Path) -> None:
    file = tmp_path / "weighted.py"
    file.write_text(PLUGIN)
    plugins = load(Switches(only=(), files=(file,)))
    entry = plugins.registry.find(Kind.REWARD, "weighted", "--reward")
    config = entry.config.model_validate({"weight": 3.5})
    part = Part(name=entry.record.name, factory=entry.component.factory, config=config)
    file.unlink()
    parcel = tmp_path / "parcel"
    parcel.write_bytes(pickle.dumps((pickle.dumps(plugins.files), pickle.dumps(part))))
    done = ran(sys.executable, "-c", WORKER, str(parcel))
    assert done.stdout == "3.5\n", done.stderr


def test_the_module_name_follows_the_content(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.py").write_text("VALUE = 1\n")
    first, second = (files.read(tmp_path / folder / "same.py") for folder in ("a", "b"))
    assert first.module == second.module
    assert import_plugin_file(first) is import_plugin_file(second)
    (tmp_path / "b" / "same.py").write_text("VALUE = 2\n")
    third = files.read(tmp_path / "b" / "same.py")
    assert import_plugin_file(third).VALUE == 2
    assert import_plugin_file(first).VALUE == 1


def test_one_name_is_one_content(tmp_path: Path) -> None:
    paths = [tmp_path / folder / "same.py" for folder in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        path.write_text("VALUE = 1\n")
    [only] = load(Switches(only=(), files=tuple(paths), strict=True)).files
    assert only.path == str(paths[0])
    paths[1].write_text("VALUE = 2\n")
    with pytest.raises(PluginError, match=f"{paths[0]} and {paths[1]}"):
        load(Switches(only=(), files=tuple(paths)))


def test_what_is_written_is_what_was_read(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_bytes(b"VALUE = 1\r\n")
    files.write_all([files.read(file)], tmp_path / "copies")
    copy = files.read(tmp_path / "copies" / "mine.py")
    assert copy.content == file.read_bytes()
    assert [path.name for path in (tmp_path / "copies").iterdir()] == ["mine.py"]
