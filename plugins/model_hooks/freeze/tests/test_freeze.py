"""The model hook `freeze`: which names it takes, what it refuses, what becomes of parameters."""

import pytest
import torch
from pydantic import ValidationError
from refusals import Case, cases

from rlcore import ConfigError, ModelView
from rlcore_freeze.config import FreezeConfig
from rlcore_freeze.hook import Freeze

NAMES = frozenset({"embedding.weight", "layers.0.mlp.weight", "layers.1.mlp.weight", "layers.10.norm.weight"})


def frozen(*pattern: str, invert: bool = False) -> set[str]:
    return set(Freeze(FreezeConfig(pattern=pattern, invert=invert)).frozen(NAMES))


def test_a_pattern_is_looked_for_anywhere_in_the_name() -> None:
    assert frozen(r"layers\.1\.") == {"layers.1.mlp.weight"}
    assert frozen("mlp", "^embedding") == NAMES - {"layers.10.norm.weight"}
    assert frozen("mlp", invert=True) == {"embedding.weight", "layers.10.norm.weight"}


@cases("freeze")
def test_what_matches_nothing_or_everything_is_refused(case: Case) -> None:
    with case.refused(ConfigError):
        frozen(*case.given)


def test_what_is_no_regular_expression_is_refused() -> None:
    with pytest.raises(ValidationError, match="is no regular expression"):
        FreezeConfig(pattern=("layers(",))


def test_a_rank_freezes_what_it_has() -> None:
    """Its pattern may be found on another rank alone, and what was frozen before stays so."""
    here = {name: torch.nn.Parameter(torch.ones(1)) for name in sorted(NAMES)[:3]}
    here["layers.1.mlp.weight"].requires_grad_(False)
    hook = Freeze(FreezeConfig(pattern=("embedding", "norm")))
    hook.built(ModelView(modules=[], parameters=here, names=NAMES))
    assert {name: one.requires_grad for name, one in here.items()} == {
        "embedding.weight": False,
        "layers.0.mlp.weight": True,
        "layers.1.mlp.weight": False,
    }
