"""What this package offers."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_rewards() -> Iterable[Component]:
    """The text rewards."""
    yield Component(
        name="exact_match",
        factory="rlcore_text.rewards:ExactMatch",
        summary="1 where the response is the label, else 0",
        config="rlcore_text.config:ExactMatchConfig",
    )
    yield Component(
        name="token_match",
        factory="rlcore_text.rewards:TokenMatch",
        summary="share of the label's tokens that the response has at their place, its end included",
        config="rlcore_text.config:TokenMatchConfig",
        default=True,
    )
    yield Component(
        name="f1",
        factory="rlcore_text.rewards:F1",
        summary="overlap of the words of response and label, as SQuAD measures it",
        config="rlcore_text.config:F1Config",
    )
    yield Component(
        name="format",
        factory="rlcore_text.rewards:Format",
        summary="1 where the whole response matches a regular expression, else 0",
        config="rlcore_text.config:FormatConfig",
    )
    yield Component(
        name="length_rank",
        factory="rlcore_text.rewards:LengthRank",
        summary="1 for the shortest response of its group, 0 for the longest",
        config="rlcore_text.config:LengthRankConfig",
    )
    yield Component(
        name="random",
        factory="rlcore_text.rewards:Random",
        summary="1 or 0 by chance, whatever the response says: a control",
        config="rlcore_text.config:RandomConfig",
    )
