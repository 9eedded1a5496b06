"""Generators beyond `single_turn`, through the command line."""

import json
from pathlib import Path

from command import SMALL, Run, rows

HERE = Path(__file__).parent
TURNS = 3


def test_an_environment_beside_a_generator_of_one_function(run: Run, tmp_path: Path) -> None:
    """Turns are trained on while some environments crash; a set is evaluated by a plain function."""
    folder = tmp_path / "run"
    source = ("--task", "episodes", "--source.text", "copy", "--source.held-out", "20")
    game = ("--generator.environment", "copy_game:CopyGame", "--generator.max-turn-tokens", "2")
    own = ("--plugin", str(HERE / "copy_game.py"), "--eval", "plain=copy", "--eval.plain.generator", "own")
    run(
        *("train", "--algo", "reinforce++", "--model", "qwen3", *source, *game, *own, *SMALL),
        *("--max-response-tokens", "24", "--max-staleness", "1", "--steps", "3"),
        *("--save-rollouts-every", "1", "--run-dir", str(folder)),
        env={"PYTHONPATH": str(HERE)},
    )
    steps = rows(folder)[1:]
    assert [row["generator/turns"] for row in steps] == [TURNS] * 3
    assert all(row["train/grad_norm"] > 0 and row["rollout/groups"] == 8 for row in steps)
    crashed = sum(row.get("rollout/failed/environment_crashed", 0) for row in steps)
    assert crashed == sum(row["rollout/failed"] for row in steps)
    assert crashed % 8 == 0, "every sample of a group, twice"
    assert rows(folder)[-1]["eval/plain/response_length_mean"] > 0
    saved = [json.loads(line) for line in (folder / "samples" / "rollout-1.jsonl").read_text().splitlines()]
    for row in saved:
        mask = row["trajectory"]["loss_mask"]
        assert mask[:2] == [0, 0], "the first observation"
        assert mask.count(0) == 2 * TURNS, "an observation before each turn"
