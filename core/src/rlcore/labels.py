"""What a prompt's label accepts as an answer."""

import json

from rlcore.types import Json


def answers(label: Json) -> list[str]:
    """The accepted answers: a string, another JSON scalar in its JSON spelling, or a list of these.

    `ValueError` where there are none.
    """
    found = label if isinstance(label, list | tuple) else [label]
    if not found or any(answer is None or isinstance(answer, dict | list) for answer in found):
        raise ValueError(
            f"the label {label!r} is no text, number or list of these to compare a response with"
        )
    return [answer if isinstance(answer, str) else json.dumps(answer) for answer in found]
