"""What engines say of themselves becomes metrics."""

from rlcore.engines.tally import EngineTally, tally_metrics


def test_what_nobody_counted_is_left_out() -> None:
    assert tally_metrics([]) == tally_metrics([EngineTally(), EngineTally()]) == {}


def test_answers_and_looks_of_all_engines_together() -> None:
    """Two engines: 10 of 40 prompt tokens cached; 12 tokens in 5 checks of drafts; 1, 3 and 8 requests."""
    first, second = EngineTally(), EngineTally()
    first.note({"prompt_tokens": 30, "cached_tokens": 10, "completion_tokens": 9, "spec_verify_ct": 3})
    first.note({"prompt_tokens": 5, "cached_tokens": 0, "completion_tokens": 7})
    second.note({"prompt_tokens": 5, "completion_tokens": 3, "spec_verify_ct": 2})
    first.look(1, 0)
    first.look(3, 2)
    second.look(8, 1)
    assert tally_metrics([first, second]) == {
        "engine/cache_hit_rate": 0.25,
        "engine/accept_length": 12 / 5,
        "perf/running_mean": 4.0,
        "perf/running_max": 8,
        "perf/waiting_mean": 1.0,
        "perf/waiting_max": 2,
    }
