"""The docstrings of hooks, and of what authors of plugins need most, have examples, and these run."""

import doctest
import inspect
import sys

import pytest

import rlcore
from rlcore.api import hookspecs
from rlcore.plugins.registry import RULES

SPECS = sorted(name for name in vars(hookspecs) if name.startswith("rlcore_"))
NAMES = [
    *("Prompt", "Sample", "Score", "Completion", "TrainBatch"),
    *("Generator", "Reward", "Filter", "AdvantageEstimator", "Loss", "PromptSource", "Engine"),
]


def failures(name: str, documented: object, module: str) -> int:
    finder = doctest.DocTestFinder(recurse=False)
    (found,) = finder.find(documented, name, module=sys.modules[module], globs={})
    assert found.examples
    return doctest.DocTestRunner().run(found).failed


@pytest.mark.parametrize("name", SPECS)
def test_the_example_of_a_hook_runs(name: str) -> None:
    assert failures(name, getattr(hookspecs, name), hookspecs.__name__) == 0


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_public_name_runs(name: str) -> None:
    documented = getattr(rlcore, name)
    assert "\n\n    >>> " in (inspect.getdoc(documented) or ""), "indented, it is code on the site"
    assert failures(name, documented, documented.__module__) == 0


def test_every_registration_hook_has_a_specification() -> None:
    hooks = {rules.hook for rules in RULES.values()}
    assert {*hooks, "rlcore_reward_adapters", "rlcore_foreign_settings", "rlcore_commands"} == set(SPECS)
