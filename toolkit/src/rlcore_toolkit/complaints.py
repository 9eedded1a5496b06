"""What a reward says of prompts that it cannot judge (`rlcore.AskingReward`)."""

from collections.abc import Callable, Iterable, Iterator

from rlcore import Prompt


def complaints_of(check: Callable[[Prompt], object], prompts: Iterable[Prompt]) -> Iterator[str]:
    """For each of `prompts` the text of the ValueError that `check` raises; empty: it raises none."""
    for prompt in prompts:
        try:
            check(prompt)
        except ValueError as error:
            yield str(error)
        else:
            yield ""
