"""Choosing corrections, a list like filters, and a value loss, which may be none."""

from collections.abc import Callable
from pathlib import Path

from refusals import Case, cases

from rlcore.api.records import Kind
from rlcore.compose.resolved import Resolved
from rlcore.compose.selection import Selection

Choose = Callable[..., Selection]
Make = Callable[..., Resolved]
Write = Callable[[str], Path]
FILE = '[correction]\nname = ["move", "weigh"]\n[correction.weigh]\nhigh = 3.0\n'


def names(resolved: Resolved) -> list[str]:
    return [part.name for part in resolved.corrections]


def high(resolved: Resolved) -> float:
    return float(getattr(resolved.corrections[-1].config, "high"))  # noqa: B009 - a field of the toy's own


def test_recipe_then_file_then_flags(make: Make, write: Write) -> None:
    """The list is replaced as a whole; a table goes with the layer that chose its part."""
    recipe = make({"algo": "off_policy"})
    assert (names(recipe), high(recipe)) == (["weigh"], 4.0)
    file = make({"algo": "off_policy"}, write(FILE))
    assert (names(file), high(file)) == (["move", "weigh"], 3.0)
    flags = {"algo": "off_policy", "correction.weigh.high": "5"}
    both = make(flags, write(FILE))
    assert (names(both), high(both)) == (["move", "weigh"], 5.0)
    assert names(make({"algo": "off_policy", "correction": ["move"]}, write(FILE))) == ["move"]
    assert names(make({"algo": "off_policy", "correction": []}, write(FILE))) == []
    reordered = make({"algo": "off_policy", "correction": ["move", "weigh"]})
    assert (names(reordered), high(reordered)) == (["move", "weigh"], 4.0)


@cases("corrections")
def test_what_does_not_fit_is_refused(make: Make, case: Case) -> None:
    with case.refused():
        make(case.given)


def test_what_fits_is_not(make: Make) -> None:
    assert names(make({"correction": ["move"], "minibatches": "1", "old_log_probs": "rollout"})) == ["move"]
    assert names(make({"correction": ["move", "weigh"], "minibatches": "2"})) == ["move", "weigh"]
    assert make({"old_log_probs": "rollout"}).run.loss.old_log_probs == "rollout"


def test_a_value_loss_may_be_none(choose: Choose, make: Make, write: Write) -> None:
    chosen = choose({"value_loss": "square"})
    assert chosen.chosen("value_loss") == "square"
    assert "value_loss.below" in chosen.known()
    file = write('[value_loss]\nname = "square"\nbelow = 2.0\n')
    assert Kind.VALUE_LOSS in choose({}, file).entries
    none = choose({"value_loss": "none"}, file)
    assert Kind.VALUE_LOSS not in none.entries
    assert "value_loss.below" not in none.settings()
    assert make({"value_loss": "none"}, file).value_loss is None
    assert make().flat()["value_loss"] is None
    assert make({}, write(make().to_toml())) == make()
