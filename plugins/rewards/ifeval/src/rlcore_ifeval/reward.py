"""The reward `ifeval`: which of a prompt's instructions a response follows."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from rlcore import Json, Prompt, Sample, Score, answer_of
from rlcore_ifeval.config import IfevalConfig
from rlcore_ifeval.instructions import CHECKS
from rlcore_toolkit import complaints_of

INSTRUCTIONS = "instruction_id_list"
ARGUMENTS = "kwargs"
"""Keys of a prompt's metadata, as the published data set of IFEval has them."""

Check = Callable[[str], bool]


class Ifeval:
    """The share of the instructions that a response follows, or 1.0 where it follows them all.

    Source: IFEval, https://arxiv.org/abs/2311.07911; `loose` as in its section 2.2. Parts: `followed`, the
    share; `all`, 1.0 where all are followed. An empty response follows none.
    """

    def __init__(self, config: IfevalConfig) -> None:
        self._config = config

    @classmethod
    def prompt_complaints(cls, config: IfevalConfig, prompts: Sequence[Prompt]) -> Iterable[str]:
        """Metadata without instructions, with unknown ones, or with arguments that these don't have."""
        return complaints_of(lambda prompt: [check("Try.") for check in _checks(prompt.metadata)], prompts)

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """One score for each sample. `ValueError` for metadata without instructions, or unknown ones."""
        checks = list(_checks(samples[0].prompt.metadata))
        return [self._judge(answer_of(sample), checks) for sample in samples]

    def _judge(self, text: str, checks: Sequence[Check]) -> Score:
        texts = [text for text in (_variants(text) if self._config.loose else [text]) if text.strip()]
        followed = sum(any(check(text) for text in texts) for check in checks) / len(checks)
        value = followed if self._config.value == "share" else float(followed == 1)
        return Score(value=value, parts={"followed": followed, "all": float(followed == 1)})


def _variants(text: str) -> list[str]:
    lines = text.split("\n")
    cuts = ["\n".join(part) for part in (lines, lines[1:], lines[:-1], lines[1:-1])]
    return [variant for cut in cuts for variant in (cut.strip(), cut.replace("*", "").strip())]


def _checks(metadata: Mapping[str, Json]) -> Iterator[Check]:
    names, arguments = metadata.get(INSTRUCTIONS), metadata.get(ARGUMENTS)
    if not isinstance(names, list | tuple) or not names:
        raise ValueError(f"the metadata have no list {INSTRUCTIONS}")
    tables = [{}] * len(names) if arguments is None else arguments
    if not isinstance(tables, list | tuple) or len(tables) != len(names):
        raise ValueError(
            f"the metadata {ARGUMENTS} are no list of one table for each of {len(names)} instructions"
        )
    for name, table in zip(names, tables, strict=True):
        if name not in CHECKS:
            raise ValueError(f"the instruction {name!r} is none of those of IFEval")
        # A data set of columns gives every row the arguments of all instructions, mostly None.
        values = {key: value for key, value in (table or {}).items() if value is not None}
        yield partial(_follows, name, CHECKS[name], values)


def _follows(name: str, check: Callable[..., bool], values: Mapping[str, Json], text: str) -> bool:
    try:
        return check(text, **values)
    except TypeError as error:
        raise ValueError(f"the instruction {name!r} has the arguments {dict(values)!r}: {error}") from error
