"""One tree of exceptions.

`UserError` is the user's to mend: its message is one clear sentence that names the flag or file, what was
found and what was expected; the command line prints it without a traceback and exits with code 2.
`RunError` ends a run that was set up correctly (a dead worker, a loss that is not finite): exit code 1.
Each class is also the standard-library error that it specialises.
"""

import contextlib
import inspect
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

T = TypeVar("T")


_SHOWN = 40
"""Characters of a value in an error."""


class RlcoreError(Exception):
    """Root of the tree. `summary`: how far a run came that the error ended, for `--json`."""

    exit_code = 1
    summary: Mapping[str, object] = MappingProxyType({})


class UserError(RlcoreError, ValueError):
    """Something that the user can mend."""

    exit_code = 2


class ConfigError(UserError):
    """A flag, a key of the TOML file, or a combination of them."""


class PluginError(UserError):
    """A plugin that is missing, broken or clashes with another one."""


def first_line(error: BaseException) -> str:
    """The first line of an error's text, without a full stop; of one without a text, its type."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__).removesuffix(".")


def one_line(error: BaseException) -> str:
    """An error's type and its whole text, without a full stop; of a `PluginError`, the text alone."""
    text = " ".join(str(error).split()).removesuffix(".")  # torch's take several lines
    if isinstance(error, PluginError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def located(error: BaseException) -> str:
    """What a plugin raised, in one line, and the last line of code outside of core.

    Lines of a module with `__tracebackhide__` do not count either: it only calls what a user wrote.
    """
    core, place = Path(__file__).parents[1], ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if not (Path(file).is_relative_to(core) or frame.f_globals.get("__tracebackhide__")):
            place = f" ({file}, line {line})"
    return f"{one_line(error)}{place}"


@contextlib.contextmanager
def faults_of(what: str) -> Iterator[None]:
    """What `what`, a plugin's part, raises is told as its own; errors of this tree go on as they are."""
    try:
        yield
    except RlcoreError:
        raise
    except (Exception, SystemExit) as error:  # a part does not end the run by itself
        raise PluginError(f"{what} failed: {located(error)}.") from error


def described(value: object) -> str:
    """A value in a few words: `None`, `a list`, a short number or text as it is."""
    if value is None or isinstance(value, bool | int | float | str):
        shown = repr(value)
        if len(shown) <= _SHOWN:
            return shown
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def returned(what: str, found: object, kind: type[T], expected: str) -> T:
    """`found`, which `what`, a plugin's part, returned. PluginError where it is no `kind`."""
    if isinstance(found, kind):
        return found
    if inspect.iscoroutine(found):
        found.close()  # or Python would warn that nobody awaited it
    raise PluginError(f"{what} returned {described(found)}; expected {expected}.")


class DataError(UserError):
    """A prompt file or a task."""


class ModelError(UserError):
    """A model directory: config, weights or tokenizer."""


class CheckpointError(UserError):
    """A checkpoint or a run folder."""


class MissingEngineError(UserError, ImportError):
    """An engine whose package is not installed; the message holds the pip line that installs it."""


class MissingPackageError(UserError, ImportError):
    """A part whose package is not installed; the message holds the pip line that installs it."""


class RunError(RlcoreError, RuntimeError):
    """A run that was set up correctly and cannot go on."""


class EngineError(RunError):
    """A generation server that died, refused a request or did not answer in time."""


class WorkerError(RunError):
    """A train or rollout worker that died or did not answer in time."""


class DeltaError(EngineError):
    """Changes of weights that are damaged, or made for other weights than those that are held."""


class StaleWeightsError(RunError):
    """An engine whose weights are not those of the trainer."""


class LogProbGapError(RunError):
    """Trainer and engine disagree about the log-probs of the sampled tokens."""


class NotFiniteError(RunError, ArithmeticError):
    """A loss or a gradient that is not finite."""


def ended(sentence: str) -> str:
    """`sentence` with its full stop, where it does not end with a question already."""
    return sentence if sentence.endswith("?") else f"{sentence.removesuffix('.')}."


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?`, or the empty string where nothing is near."""
    import difflib  # for an error alone

    # dashes would make all flags alike
    bare = {candidate.lstrip("-").lower(): candidate for candidate in known}
    word = name.lstrip("-").lower()
    swapped = [candidate for candidate in bare if sorted(candidate) == sorted(word)]  # what fast fingers do
    near = swapped or difflib.get_close_matches(word, bare, n=1, cutoff=0.6)
    begun = [candidate for candidate in bare if len(word) > 1 and candidate.startswith(word)]
    near = near or sorted(begun, key=len)
    return f" Did you mean {bare[near[0]]!r}?" if near else ""
