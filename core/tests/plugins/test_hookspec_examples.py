"""Each hook has an example in its docstring, and each example runs."""

import doctest

import pytest

from rlcore.api import hookspecs
from rlcore.plugins.registry import RULES

SPECS = sorted(name for name in vars(hookspecs) if name.startswith("rlcore_"))


@pytest.mark.parametrize("name", SPECS)
def test_the_example_runs(name: str) -> None:
    (found,) = doctest.DocTestFinder(recurse=False).find(getattr(hookspecs, name), name, module=hookspecs)
    assert found.examples
    assert doctest.DocTestRunner().run(found).failed == 0


def test_every_registration_hook_has_a_specification() -> None:
    hooks = {rules.hook for rules in RULES.values()}
    assert {*hooks, "rlcore_reward_adapters", "rlcore_foreign_settings", "rlcore_commands"} == set(SPECS)
