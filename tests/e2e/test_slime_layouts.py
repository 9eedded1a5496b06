"""slime's run scripts, translated, on small models: two steps, with the numbers of one rank."""

from pathlib import Path

import pytest
from command import Run, rows
from slime_layouts import GROUP, PROMPTS, SCALED, STEPS, small_run, write_model
from slime_runs import FP8, translated

from rlcore import dump_settings
from rlcore.plugins.loader import load
from rlcore_testing.checkpoints import publish_fp8

RELATIVE = 1e-4
SAME = ("train/loss", "train/grad_norm", "train/entropy")
BLOCK = (16, 16)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SCALED)
def test_a_translated_run_trains_as_on_one_rank(
    run: Run, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    settings = translated(name, load().registry).settings
    model = write_model(tmp_path, SCALED[name])
    if name in FP8:
        publish_fp8(model, BLOCK)
    metrics = []
    for place, scaled in {"one": None, "many": SCALED[name]}.items():
        file = tmp_path / f"{place}.toml"
        file.write_text(dump_settings(small_run(settings, scaled, tmp_path, model)))
        folder = tmp_path / place
        run("train", "--config", str(file), "--run-dir", str(folder), "--cluster", "processes")
        metrics.append(rows(folder))
    one, many = metrics
    assert [row["step"] for row in many][-STEPS:] == list(range(1, STEPS + 1))
    if settings["algo"] != "sft":
        samples = many[-STEPS]["rollout/samples"]
        assert samples == one[-STEPS]["rollout/samples"] >= PROMPTS * GROUP, "a filter has more drawn"
        assert 0 <= many[-STEPS]["train/kl_engine_max"] <= 1e-4
    assert one[-STEPS]["train/grad_norm"] > 0
    if settings.get("sleep") == "all":
        assert many[-1]["train/asleep_mb"] > 0, "the trainer sleeps while the engine generates"
    rounding = SCALED[name].rounding
    for key in SAME:
        if key in one[-STEPS]:
            assert many[-STEPS][key] == pytest.approx(one[-STEPS][key], rel=RELATIVE, abs=rounding), key
            assert many[-1][key] == pytest.approx(one[-1][key], rel=100 * RELATIVE, abs=1e-6), key
