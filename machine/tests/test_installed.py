"""Fake distributions in a folder on the path, and packages beside them."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rlcore_machine import installed

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Makes a distribution: its name, what it requires, and what pip notes of where it came from."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(name: str, *requires: str, direct_url: str = "") -> None:
        folder = tmp_path / f"{name.replace('-', '_')}-1.2.dist-info"
        folder.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.2"]
        (folder / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {one}" for one in requires)]))
        (folder / "direct_url.json").write_text(direct_url)
        importlib.invalidate_caches()

    return make


def test_versions_are_those_of_what_is_installed(install: Install) -> None:
    install("acme")
    assert installed.versions(["acme", "not-there"]) == {"acme": "1.2"}


def test_the_url_is_where_pip_took_it_from(install: Install) -> None:
    install("indexed")
    install("local", direct_url='{"url": "file:///src", "dir_info": {"editable": true}}')
    install("cloned", direct_url='{"url": "https://host/x", "vcs_info": {"vcs": "git", "commit_id": "a1"}}')
    urls = [installed.url(name) for name in ("indexed", "local", "cloned", "not-there", "/a/file.py", "")]
    assert urls == [None, "file:///src", "https://host/x@a1", None, None, None]


def test_what_lies_between_requires_the_base_itself(install: Install) -> None:
    """What needs an extra, or another Python, is not required; names are compared as pip does."""
    install("base")
    install("top", "Middle_One>=1", "other", "unused; extra == 'more'", "old; python_version < '3'", "base")
    install("middle-one", "base", "below")
    install("below", "base[x]>1")
    for name in ("unused", "old"):
        install(name, "base")
    install("other", "numpy")
    assert installed.between("base", ["top", "not-there"]) == {"middle-one", "below"}


def test_the_hash_is_of_every_python_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package is hashed whole, whichever of its modules is asked for; a namespace around it is none."""
    package = tmp_path / "spaces" / "acme_rewards"
    (package / "deep").mkdir(parents=True)
    for name in ("__init__", "reward", "deep/__init__", "deep/maths"):
        (package / f"{name}.py").touch()
    (tmp_path / "single.py").touch()
    monkeypatch.syspath_prepend(tmp_path)

    def code() -> dict[str, str]:
        importlib.invalidate_caches()
        return installed.code(["spaces.acme_rewards.reward", "single", "sys", "not_there.at_all"])

    before = code()
    assert list(before) == ["single", "spaces.acme_rewards"]
    assert code() == before
    (package / ".#maths.py").symlink_to("nobody@nowhere.1")  # an editor's lock
    assert code() == before
    (package / "deep" / "maths.py").write_text("x = 1\n")
    after = code()
    assert after["single"] == before["single"]
    assert after["spaces.acme_rewards"] != before["spaces.acme_rewards"]
    assert "spaces.acme_rewards" not in sys.modules
