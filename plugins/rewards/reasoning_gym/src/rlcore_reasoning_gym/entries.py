"""Where reasoning-gym is imported, and how an entry is found again by what a prompt's metadata say."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from rlcore import DataError, Json

try:
    import reasoning_gym
    from reasoning_gym.factory import DATASETS
except ImportError as error:
    raise ImportError(
        f'reasoning-gym cannot be imported ({error}); pip install "rlcore-reasoning-gym[tasks]"'
    ) from error

KEY = "reasoning_gym"
"""In a prompt's metadata: dataset, seed, size, settings and index of its entry."""


def dataset(name: str, *, seed: int, size: int, settings: Mapping[str, Json]) -> Any:
    """The dataset. Raises `DataError` where reasoning-gym has none such, or refuses the settings."""
    if name not in DATASETS:
        raise DataError(f"--source.datasets: found {name!r}, expected one of {', '.join(sorted(DATASETS))}.")
    try:
        return reasoning_gym.create_dataset(name, seed=seed, size=size, **settings)
    except (TypeError, ValueError, AssertionError) as error:
        raise DataError(
            f"--source.settings: reasoning-gym refuses {dict(settings)!r} for {name!r}: {error}."
        ) from error


@cache
def _cached(name: str, seed: int, size: int, settings: tuple[tuple[str, str], ...]) -> Any:
    loaded = {key: json.loads(value) for key, value in settings}
    return dataset(name, seed=seed, size=size, settings=loaded)


def place_of(metadata: Mapping[str, Json]) -> Mapping[str, Any]:
    """Where the entry of a prompt stands. `ValueError` for a prompt of another source."""
    place = metadata.get(KEY)
    if not isinstance(place, Mapping) or {*place} != {"dataset", "seed", "size", "settings", "index"}:
        raise ValueError("the prompt is none of the source reasoning_gym")
    return place


def entry_of(metadata: Mapping[str, Json]) -> tuple[Any, Mapping[str, Any]]:
    """Dataset and entry of a prompt. `ValueError` for a prompt of another source.

    The entry is made anew rather than carried along, since it holds what JSON cannot.
    """
    place = place_of(metadata)
    settings = tuple((key, json.dumps(value)) for key, value in sorted(place["settings"].items()))
    made = _cached(place["dataset"], place["seed"], place["size"], settings)
    return made, made[place["index"]]
