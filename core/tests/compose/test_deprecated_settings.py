"""A setting that the next minor release leaves out still works, and says what to use."""

import warnings

import pytest
from pydantic import Field

from rlcore.api.config import Config
from rlcore.config import layers
from rlcore.config.layers import Layer


class OldConfig(Config):
    clip: float = Field(0.2, description="bound", deprecated="give --loss.clip-low and --loss.clip-high")
    rate: float = Field(1.0, description="rate")


@pytest.mark.parametrize(
    ("label", "value", "place"), [("", "0.5", "--loss.clip"), ("run.toml", 0.5, "run.toml: loss.clip")]
)
def test_one_that_is_given_warns_and_works(label: str, value: object, place: str) -> None:
    settings = layers.merge([Layer(label=label, values={"loss.clip": value})])
    with pytest.warns(FutureWarning) as told:
        config = layers.build(OldConfig, settings, "loss")
    assert [str(one.message) for one in told] == [
        f"{place} is deprecated, and the next minor release has no such setting: give --loss.clip-low and "
        "--loss.clip-high."
    ]
    assert vars(config)["clip"] == 0.5


def test_one_that_nobody_gives_is_silent() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layers.build(OldConfig, layers.merge([Layer(label="", values={"loss.rate": "2"})]), "loss")
