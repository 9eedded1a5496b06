"""Mutation tests: each part of the algorithms is swapped by its nearest neighbor, and a test must fail.

    python scripts/mutants.py                  # all; exit code 1 where one survives
    python scripts/mutants.py --only gspo gae  # those whose name holds one of the words

The mutants are in `mutants.toml` beside this file. They are made in a copy of the tree, in a temporary
folder. One that breaks the collection of its tests, or whose text is no longer in the file, ends the program
with exit code 2: it says nothing, and must be mended.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
TABLE = Path(__file__).with_suffix(".toml")
COPIED = ("machine", "core", "sandbox", "toolkit", "testing", "cli", "plugins", "tests", "pyproject.toml")
KILLED, PASSED = pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.OK


class BrokenMutantError(Exception):
    """A mutant that proves nothing."""


@dataclass(frozen=True)
class Mutant:
    """`old` occurs once in the file `path` and becomes `new`; one of `tests` must fail then."""

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, text: str) -> str:
        """`text` of the file with the swap."""
        if (found := text.count(self.old)) != 1:
            raise BrokenMutantError(
                f"{self.name}: {self.path} holds {self.old!r} {found} times, expected once."
            )
        return text.replace(self.old, self.new)


def mutants(table: Path = TABLE) -> list[Mutant]:
    """Those of a table."""
    files = tomllib.loads(table.read_text())["file"]
    return [
        Mutant(path=file["path"], tests=tuple(file["tests"]), **swap)
        for file in files
        for swap in file["swaps"]
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a table; 0 where every mutant was killed."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--only", nargs="+", default=[""], metavar="WORD", help="names that hold a word")
    options.add_argument("--table", type=Path, default=TABLE, help="another table than the project's")
    args = options.parse_args(arguments)
    chosen = [mutant for mutant in mutants(args.table) if any(word in mutant.name for word in args.only)]
    survivors: list[Mutant] = []
    with tempfile.TemporaryDirectory(prefix="rlcore-mutants-") as folder:
        tree = Path(folder)
        try:
            copy(tree)
            check_unchanged(tree, chosen)
            for mutant in chosen:
                begin = time.perf_counter()
                if not (killed := is_killed(tree, mutant)):
                    survivors.append(mutant)
                shown = "killed" if killed else "SURVIVED"
                print(f"{shown:9}{time.perf_counter() - begin:6.1f} s  {mutant.name}", flush=True)
        except BrokenMutantError as error:
            print(f"mutants: {error}", file=sys.stderr)
            return 2
    print(f"\n{len(chosen) - len(survivors)} of {len(chosen)} mutants were killed.")
    for mutant in survivors:
        print(f"survived: {mutant.name} ({mutant.path})")
    return int(bool(survivors))


def copy(tree: Path) -> None:
    """What the tests need, without anything that was compiled."""
    ignored = shutil.ignore_patterns("__pycache__", ".*", "*.egg-info")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=ignored)
        else:
            shutil.copy(source, tree / name)


def check_unchanged(tree: Path, chosen: Sequence[Mutant]) -> None:
    """The tests pass before anything is swapped."""
    tests = sorted({test for mutant in chosen for test in mutant.tests})
    if tests and run_tests(tree, tests) != PASSED:
        raise BrokenMutantError(f"without any mutant, these tests fail: {' '.join(tests)}")


def is_killed(tree: Path, mutant: Mutant) -> bool:
    """Whether one of its tests fails with the swap. The file is put back."""
    path = tree / mutant.path
    original = path.read_text()
    path.write_text(mutant.applied(original))
    try:
        code = run_tests(tree, mutant.tests)
    finally:
        path.write_text(original)
    if code not in (KILLED, PASSED):
        raise BrokenMutantError(f"{mutant.name}: its tests cannot be run (exit code {code}).")
    return code == KILLED


def run_tests(tree: Path, tests: Sequence[str]) -> int:
    """pytest's exit code. It runs in a fork of this process, which has imported torch already."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        code = int(pytest.ExitCode.INTERNAL_ERROR)
        try:
            code = _in_child(tree, tests)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _in_child(tree: Path, tests: Sequence[str]) -> int:
    os.chdir(tree)
    sources = [str(path) for pattern in ("*/src", "plugins/*/*/src") for path in tree.glob(pattern)]
    sys.path[:0] = sources
    os.environ["PYTHONPATH"] = os.pathsep.join(sources)
    # two mutants of one file may have the same size and time, and share what was compiled
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    with (tree / "pytest.log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests])
    assert str(sys.modules["rlcore"].__file__).startswith(str(tree)), "the tests must see the copy"
    return int(code)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
