"""What wins, what goes into a `Resolved`, and its way through TOML and pickle."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from rlcore import ConfigError, RunConfig
from rlcore.api.config import is_group
from rlcore.compose.resolved import Resolved

Make = Callable[..., Resolved]
Write = Callable[[str], Path]


def test_each_layer_wins_over_those_before_it(make: Make, write: Write) -> None:
    file = write("seed = 3\nprompts_per_step = 7\n")
    resolved = make({"prompts_per_step": "9"}, file)
    assert resolved.run.steps == 100  # default
    assert resolved.run.optimizer.minibatches == 4  # the model's suggestion over the loss's
    assert resolved.run.optimizer.lr == 0.5  # the recipe over the model
    assert resolved.run.seed == 3  # the file
    assert resolved.run.data.prompts_per_step == 9  # the flag over the file over the model
    assert [part.name for part in resolved.rewards] == ["token_match"]  # the task's suggestion


@pytest.mark.parametrize(
    ("flag", "text", "expected"),
    [(None, None, 0.3), (None, "[loss]\nclip = 0.4", 0.4), ("0.6", "[loss]\nclip = 0.4", 0.6)],
)
def test_tables_have_the_same_layers(
    make: Make, write: Write, flag: str | None, text: str | None, expected: float
) -> None:
    resolved = make({"loss.clip": flag} if flag else {}, write(text) if text else None)
    assert resolved.loss.config.model_dump()["clip"] == expected
    assert resolved.filters[0].config.model_dump() == {"below": 0.25}


def test_parts_come_with_their_factories(make: Make) -> None:
    resolved = make()
    assert (resolved.loss.factory, resolved.engine.name, resolved.generator.name) == (
        "toy:Clip",
        "local",
        "single_turn",
    )
    assert resolved.source.name == "copy"
    model = resolved.model
    assert (model.family.name, model.path, model.family.preset) == ("tiny", None, "toy:preset")
    versions = {info.name: info.version for info in resolved.plugins}
    assert set(versions) == {"local", "sampling", "tasks", "toy_plugin.py"}
    assert versions["toy_plugin.py"] == f"sha256:{resolved.plugin_files[0].sha256}"


def test_a_table_stays_with_the_part_that_its_layer_chose(make: Make, write: Write) -> None:
    file = write('[loss]\nname = "clip"\nclip = 0.4\n[sglang]\nx = 1\n[engine]\nname = "sglang"\n')
    resolved = make({"loss": "other", "loss.delta": "0.75", "engine": "local"}, file)
    assert resolved.loss.config.model_dump() == {"delta": 0.75}
    assert resolved.engine_fields == {}


def test_the_short_form_of_a_choice(make: Make, write: Write) -> None:
    assert make({}, write('loss = "other"\nfilter = []\n')).loss.name == "other"
    assert make({}, write('loss = "other"\nfilter = []\n')).filters == ()


def test_filters_are_a_list_in_order(make: Make, write: Write) -> None:
    file = write('[filter]\nname = ["keep", "drop"]\n[filter.drop]\nbelow = 2.0\n')
    assert [part.name for part in make({}, file).filters] == ["keep", "drop"]
    assert make({}, file).filters[1].config.model_dump() == {"below": 2.0}
    assert [part.name for part in make({"filter": ["keep"]}, file).filters] == ["keep"]
    assert make({"filter": []}, file).filters == ()


def test_pass_through_fields_have_the_types_that_a_file_gives_them(make: Make, write: Write) -> None:
    file = write("[gymlib]\nwidth = 2\ndeep = true\n")
    resolved = make({"gymlib.deep": "false", "gymlib.anything": "x"}, file)
    assert resolved.trainer_fields == {
        "width": 2,
        "deep": False,
        "anything": "x",
    }
    for spelled in ("1.10", "1e3", "NaN", "-Infinity"):
        assert make({"gymlib.anything": spelled}).trainer_fields["anything"] == spelled
    assert make({"gymlib.anything": "0.5"}).trainer_fields["anything"] == 0.5
    text = make({"gymlib.width": "2"}).to_toml()
    assert "width = 2\n" in text
    assert make({}, write(text)) == make({}, write(text.replace("width = 2", 'width = "2"')))


def test_ranks_follow_the_parallel_sizes(make: Make) -> None:
    assert make().run.ranks == 1
    sizes = {"gymlib.width": "4"}
    assert make(sizes).run.ranks == 4
    assert make({**sizes, "ranks": "8"}).run.ranks == 8


def test_data_chooses_the_file_source(
    make: Make, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows.jsonl").write_text("{}\n")
    monkeypatch.chdir(tmp_path)
    resolved = make({"data": "rows.jsonl", "reward": ["many"], "source.prompt_key": "question"})
    assert resolved.source.name == "file"
    assert resolved.source.config.model_dump()["path"] == str(tmp_path / "rows.jsonl")
    assert resolved.flat()["data"] == str(tmp_path / "rows.jsonl")
    assert "source.path" not in resolved.flat()
    file = write('data = "other.jsonl"\n[source]\nprompt_key = "question"\n')
    (tmp_path / "other.jsonl").write_text("{}\n")
    again = make({"data": "rows.jsonl", "reward": ["many"]}, file).source.config.model_dump()
    assert again["prompt_key"] == "question", "other data have the same source"


def test_a_directory_is_matched_by_its_architecture(make: Make, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LargeForCausalLM"]}))
    model = make({"model": str(tmp_path)}).model
    assert (model.family.name, model.path) == ("large", str(tmp_path))


def test_a_preset_suggests_nothing_for_a_directory(make: Make, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["TinyForCausalLM"]}))
    run = make({"model": str(tmp_path)}).run
    assert (run.data.prompts_per_step, run.optimizer.minibatches) == (
        32,
        2,
    )  # the default, and the loss's suggestion


MANY: dict[str, object] = {
    "reward": ["many"],
    "reward.many.words": ["a b", "none"],
    "reward.many.numbers": [],
    "reward.many.pair": ["1", "2.5"],
    "reward.many.mode": "hard",
    "reward.many.color": "blue",
    "reward.many.folder": "none",
    "reward.many.table": '{"x": 1}',
}
SELECTIONS: dict[str, dict[str, object]] = {
    "defaults": {},
    "parts": {"loss": "other", "loss.delta": "0.1", "filter": ["keep", "drop"], "filter.drop.below": "3"},
    "no_filter": {"filter": [], "task": "add", "source.digits": "3"},
    "none": {"loss.bound": "none", "advantage.center": False},
    "bound": {"loss.bound": "2", "lr": "1e-5", "stop": ["\n", '"']},
    "pass_through": {"gymlib.x": "1", "engine": "sglang", "sglang.mem": True, "engine.threads": "3"},
    "many": MANY,
    "corrections": {"correction": ["weigh", "move"], "correction.weigh.high": "7"},
    "evals": {
        "eval": ["a=copy", "digits=sort"],
        "eval.a.reward": "many",
        "eval.a.generator": "single_turn",
        "eval.digits.max_tokens": "7",
    },
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_toml_comes_back_as_the_same_run(make: Make, write: Write, name: str) -> None:
    resolved = make(SELECTIONS[name])
    again = make({}, write(resolved.to_toml()))
    assert again == resolved
    assert again.to_toml() == resolved.to_toml()


@pytest.mark.parametrize("name", SELECTIONS)
def test_a_resolved_run_travels_by_pickle(make: Make, name: str) -> None:
    resolved = make(SELECTIONS[name])
    assert pickle.loads(pickle.dumps(resolved)) == resolved


def test_texts_of_flags_become_what_the_field_holds(make: Make) -> None:
    [reward] = make(MANY).rewards
    config = reward.config.model_dump()
    assert config["words"] == ("a b", "none")
    assert config["numbers"] == ()
    assert config["pair"] == (1.0, 2.5)
    assert (config["mode"], config["color"], config["folder"], config["table"]) == (
        "hard",
        "blue",
        None,
        {"x": 1},
    )


def test_rewards_have_weights(make: Make, write: Write) -> None:
    resolved = make({"reward": ["many=-0.5", "token_match"], "reward.many.mode": "hard"})
    assert [(part.name, part.weight) for part in resolved.rewards] == [("many", -0.5), ("token_match", 1.0)]
    assert make({}, write(resolved.to_toml())) == resolved
    again = make({"reward": ["many=2"]}, write(resolved.to_toml()))
    assert [(part.name, part.weight) for part in again.rewards] == [("many", 2.0)]
    assert again.rewards[0].config.model_dump()["mode"] == "hard"


def test_a_file_may_name_its_one_reward(make: Make, write: Write) -> None:
    resolved = make({}, write('reward = "many"\n'))
    assert [part.name for part in resolved.rewards] == ["many"]


def test_a_derived_file_may_say_none(make: Make, write: Write) -> None:
    resolved = make({}, write('[loss]\nbound = "none"\n'))
    assert resolved.loss.config.model_dump()["bound"] is None


def test_a_file_is_stricter_than_a_flag(make: Make, write: Write) -> None:
    assert make({"steps": "5"}).run.steps == 5
    with pytest.raises(
        ConfigError, match=r"^run\.toml: steps: found the text '5', expected an integer of at least 1\.$"
    ):
        make({}, write('steps = "5"\n'))


def test_no_group_of_a_runs_settings_is_too_large_to_read() -> None:
    groups = [field.annotation for field in RunConfig.model_fields.values() if is_group(field.annotation)]
    assert len(groups) >= 10
    assert max(len(group.model_fields) for group in groups) <= 15
    assert len(RunConfig.model_fields) - len(groups) <= 15
