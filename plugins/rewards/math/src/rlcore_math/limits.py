"""`each`: a function of texts in a child process with limits of time and memory for each text."""

import os
import pickle
import resource
import signal
from collections.abc import Callable, Sequence
from typing import BinaryIO, TypeVar

Result = TypeVar("Result")


def each(
    function: Callable[[str], Result], texts: Sequence[str], *, seconds: float, memory_mib: int
) -> list[Result | None]:
    """What `function` says of each text; None for one that takes more than its limits.

    `seconds` are of the processor, so that a busy machine changes nothing. A signal ends what Python cannot
    interrupt, such as a power of large numbers; the next child goes on with the next text. An exception of
    `function` is raised here.
    """
    results: list[Result | None] = []
    while len(results) < len(texts):
        part = _begin(function, texts[len(results) :], seconds, memory_mib)
        results += part
        if len(results) < len(texts):
            results.append(None)
    return results


def _begin(
    function: Callable[[str], Result], texts: Sequence[str], seconds: float, memory_mib: int
) -> list[Result]:
    """The results up to the first text that takes too much."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            # the worker's connection among them, whose end says that the worker ended
            os.closerange(3, write)
            os.closerange(write + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
            with open(write, "wb") as output:
                _work(function, texts, seconds, memory_mib, output)
        finally:
            os._exit(0)
    os.close(write)
    try:
        with open(read, "rb") as answers:
            return list(_read(answers))
    finally:
        os.waitpid(child, 0)


def _work(
    function: Callable[[str], Result], texts: Sequence[str], seconds: float, memory_mib: int, output: BinaryIO
) -> None:
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (used + (memory_mib << 20), resource.RLIM_INFINITY))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # which ends the process
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # which are no verdict
        signal.signal(number, signal.SIG_IGN)
    for text in texts:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            answer: object = (function(text), None)
        except (MemoryError, RecursionError):
            return
        except Exception as error:
            answer = (None, error)
        pickle.dump(answer, output)
        output.flush()


def _read(answers: BinaryIO) -> list[Result]:
    results: list[Result] = []
    while True:
        try:
            result, error = pickle.load(answers)
        except (EOFError, pickle.UnpicklingError):
            return results
        if error is not None:
            raise error
        results.append(result)
