"""The reward: whether the last number of the response is the result."""

import re

NUMBER = re.compile(r"-?\d+(?:,\d{3})*")


def last_number(response: str, label: str) -> float:
    """1 where the last number of `response` is `label`, else 0."""
    numbers = NUMBER.findall(response)
    return float(bool(numbers) and numbers[-1].replace(",", "") == label)
