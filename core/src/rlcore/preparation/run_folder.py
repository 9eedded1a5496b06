"""The folder of a run: the names in it, and how it is made and written."""

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rlcore.api.errors import CheckpointError, ConfigError, RunError
from rlcore.checkpoint.disk import replace_file
from rlcore.compose.resolved import Resolved
from rlcore.config import toml
from rlcore.plugins.files import write_all

if TYPE_CHECKING:
    from rlcore.preparation.provenance import Provenance

RUN_TOML = "run.toml"
"""The file with the run's settings."""

MODEL_DIR = "model"
"""The folder with the model of a preset, if the run started from one."""

CHECKPOINTS = "checkpoints"
LOCK = ".lock"
"""The file that a run holds while it goes on, with its process id."""
_PRIVATE = 0o700
"""Prompts, samples and weights are their owner's."""
PLUGINS = "plugins"


@contextmanager
def run_folder(run_dir: Path | None, held: ExitStack, name: str, *, resume: bool = False) -> Iterator[Path]:
    """The run's folder; a new one is removed again where the preparation fails.

    `run_dir`: None makes `runs/<time>-<name>`, with a number behind it if a run of the same second has it.
    `held`: keeps the folder for this process alone (`alone_in`) until it closes.
    """
    if run_dir is not None and resume:
        if not (run_dir / RUN_TOML).is_file():
            raise CheckpointError(f"--resume {run_dir}: no {RUN_TOML} in it, so it is not a run of rlcore.")
        held.enter_context(alone_in(run_dir))
        yield run_dir
        return
    if run_dir is not None:
        check_new(run_dir)
    parent = Path("runs") if run_dir is None else run_dir.parent
    parents = [path for path in (parent, *parent.parents) if not path.exists()]
    try:
        if run_dir is None:
            folder = _new(parent, name)
        else:
            folder = run_dir
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=_PRIVATE, exist_ok=True)
    except OSError as error:
        _remove_empty(parents)
        target = "the run's folder in runs/" if run_dir is None else f"--run-dir {run_dir}:"
        raise ConfigError(f"{target} cannot be made: {error.strerror}.") from error
    # Before the `try`: a run that meets another one here leaves the folder to it.
    held.enter_context(alone_in(folder))
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        _remove_empty(parents)
        raise


def check_new(run_dir: Path) -> None:
    """`ConfigError` if `run_dir` is neither new nor an empty folder.

    `CheckpointError` if a run goes on in it.
    """
    if run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir())):
        if (run_dir / LOCK).exists():
            with alone_in(run_dir):  # raises for a run that goes on: `--resume` would be refused too
                pass
        raise ConfigError(
            f"--run-dir: {str(run_dir)!r} is neither new nor an empty folder; name another (rlcore train "
            "--resume goes on with a run)."
        )


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Within, no other process runs in `folder`; `CheckpointError` where one does.

    The lock ends with this process, however it ends, and what it forks has no part in it.
    """
    try:
        file = (folder / LOCK).open("a+")
    except OSError:  # whoever writes there next says why it cannot be
        yield
        return
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            file.seek(0)
            raise CheckpointError(
                f"{folder}: process {file.read() or 'unknown'} runs in it; end that one first, or name "
                "another folder."
            ) from None
        except OSError:  # a file system without locks
            pass
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _remove_empty(folders: Iterable[Path]) -> None:
    """Those that another run has not moved into."""
    for path in folders:
        with suppress(OSError):
            path.rmdir()


def _new(parent: Path, name: str) -> Path:
    """A folder of this run alone: those of a sweep start together."""
    stamped = f"{datetime.now():%Y%m%d-%H%M%S}-{name}"
    folder, number = parent / stamped, 1
    while True:
        parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir(mode=_PRIVATE)
            return folder
        except FileNotFoundError:
            continue  # another run failed, and took the empty parent with it
        except FileExistsError:
            number += 1
            folder = parent / f"{stamped}-{number}"


def check_folder(folder: Path, before: os.stat_result) -> None:
    """`RunError` if the `folder` of a running run is no longer the one that it was `before`.

    Somebody may have removed it, and the next write then made a new one.
    """
    if not (folder.is_dir() and os.path.samestat(folder.stat(), before)):
        raise RunError(
            f"{folder}: the run's folder is gone, somebody removed or moved it. The run ends, for what it "
            "learns could not be kept."
        )


def write_settings(folder: Path, resolved: Resolved, provenance: "Provenance", step: int) -> None:
    """Write the run's copy of its plugin files, its settings, which name these copies, and its provenance.

    A resumed run's settings are replaced whole or not at all. `step`: the step of this start.
    """
    file, copies = folder / RUN_TOML, folder / PLUGINS
    flat = resolved.flat()
    if resolved.plugin_files:
        write_all(resolved.plugin_files, copies)
        flat["plugin"] = [f"{PLUGINS}/{plugin.name}" for plugin in resolved.plugin_files]
    # Last of all: a folder with a run.toml is one that can be resumed.
    provenance.append(folder, step)
    with replace_file(file) as draft:
        draft.write_text(toml.dump_settings(flat))
