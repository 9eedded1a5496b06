"""What a group of train workers says of a step."""

from rlcore.workers.train_worker import UpdateResult
from rlcore.workers.trainer_group import with_most_memory


def test_memory_is_that_of_the_fullest_rank() -> None:
    metrics = [
        {"train/loss": 1.0, "perf/gpu_memory_gb": 3.0, "perf/gpu_peak_gb": 2.0},
        {"train/loss": 2.0, "perf/gpu_memory_gb": 2.0, "perf/gpu_peak_gb": 5.0},
    ]
    results = [UpdateResult(metrics=one, location=None, write_seconds=0.5) for one in metrics]
    found = with_most_memory(results)
    assert found.metrics == {"train/loss": 1.0, "perf/gpu_memory_gb": 3.0, "perf/gpu_peak_gb": 5.0}
    assert found.write_seconds == 0.5
