"""What flags of slime mean together."""

import json
from pathlib import Path
from typing import Any

import pytest
from refusals import Case, cases

from rlcore.api.errors import ConfigError
from rlcore.plugins.loader import load
from rlcore_import.arguments import Arguments, of_words
from rlcore_import.frameworks import FRAMEWORKS
from rlcore_import.slime.translate import translate
from rlcore_import.translation import FlagVerdict
from rlcore_import.trl import program
from rlcore_import.verl import overrides

REGISTRY = load().registry


WORDS = {"slime": of_words, "verl": overrides.of_words, "trl": program.of_words}
CASES = [
    (framework, *case)
    for framework, cases in json.loads(Path(__file__).with_name("settings_of_flags.json").read_text()).items()
    for case in cases.items()
]
"""Of each framework, flags and the settings that they mean together; null: such a setting is not there."""


@pytest.mark.parametrize(("framework", "text", "expected"), CASES)
def test_flags_mean_together(framework: str, text: str, expected: dict[str, Any]) -> None:
    found = FRAMEWORKS[framework]().translate(WORDS[framework](tuple(text.split())), REGISTRY).settings
    assert {name: found.get(name) for name in expected} == expected


def settings(text: str) -> dict[str, Any]:
    return translate(of_words(text.split()), REGISTRY).settings


def verdict(text: str, flag: str) -> FlagVerdict:
    rows = translate(of_words(text.split()), REGISTRY).rows
    return next(row.outcome.verdict for row in rows if row.flag == flag)


def test_nothing_is_set_where_nothing_is_meant() -> None:
    found = settings(
        "--sequence-parallel --tensor-model-parallel-size 1 --kl-loss-coef 0 --use-kl-loss --tis-clip 3"
    )
    assert not [name for name in found if name.startswith(("megatron.", "kl", "correction"))]


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        ("--advantage-estimator mine", "--advantage-estimator"),
        ("--loss-type custom_loss", "--loss-type"),
        ("--rm-type ifbench", "--rm-type"),
        ("--rm-type boxed_f1", "--rm-type"),
        ("--debug-train-only", "--debug-train-only"),
        ("--load-debug-rollout-data D/{rollout_id}.pt", "--load-debug-rollout-data"),
        ("--rollout-batch-size 8", "--n-samples-per-prompt"),
        ("--use-tis --custom-tis-function-path my.tis", "--custom-tis-function-path"),
        ("--global-batch-size 7 --rollout-batch-size 4", "--global-batch-size"),
        ("--num-rollout 0", "--num-rollout"),
        ("--rollout-num-gpus 8 --prefill-num-servers 8", "--prefill-num-servers"),
        ("--load A --save B", "--load"),
        ("--hidden-dropout 0.1", "--hidden-dropout"),
        ("--update-weights-interval 4", "--update-weights-interval"),
        ("--lr-decay-style WSD", "--lr-decay-style"),
        ("--ft-components rollout train", "--ft-components"),
        ("--eval-num-gpus 6 --rollout-num-gpus 4 --rollout-num-gpus-per-engine 4", "--eval-num-gpus"),
        ("--critic-load A --critic-save B", "--critic-load"),
        ("--use-opd --opd-teacher-urls a=http://t:1/generate", "--opd-teacher-key"),
        ("--lora-rank 8 --exclude-modules lm_head", "--exclude-modules"),
        ("--sglang-config absent.yaml", "--sglang-config"),
    ],
)
def test_what_cannot_be_is_said(text: str, flag: str) -> None:
    assert verdict(text, flag) is FlagVerdict.IMPOSSIBLE


DEFAULT = {"name": "default"}
PREFILL = {"worker_type": "prefill", "num_gpus": 8, "num_gpus_per_engine": 8}
DECODE = {**PREFILL, "worker_type": "decode", "num_gpus": 24}


def _groups(folder: Path, *models: dict[str, Any]) -> str:
    (folder / "groups.yaml").write_text(json.dumps({"sglang": models}))  # YAML takes JSON
    return f"--sglang-config {folder / 'groups.yaml'} --rollout-num-gpus 32 --rollout-num-gpus-per-engine 8"


def test_the_critic_starts_from_a_directory_of_hugging_face(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert settings(f"--advantage-estimator ppo --critic-load {tmp_path}/")["critic.model"] == str(tmp_path)
    assert verdict("--critic-load C --critic-save C/ --save S", "--critic-load") is FlagVerdict.IMPLIED


def test_server_groups_are_engine_groups(tmp_path: Path) -> None:
    own = {**DECODE, "overrides": {"cuda_graph_max_bs": 12, "mem_fraction_static": 0.8}}
    found = settings(_groups(tmp_path, {**DEFAULT, "server_groups": [PREFILL, own]}))
    wanted = {
        "engine_group": ["prefill=1", "decode=3"],
        "engine_group.prefill.disaggregation_mode": "prefill",
        "engine_group.decode.disaggregation_mode": "decode",
        "engine_group.decode.cuda_graph_max_bs_decode": 12,
        "engine_group.decode.mem_fraction_static": 0.8,
        "router": "cache_aware",
        "sglang.tp_size": 8,
    }
    assert wanted.items() <= found.items()
    assert "engines" not in found
    plain = {"worker_type": "regular", "num_gpus": 16}
    alike = settings(_groups(tmp_path, {**DEFAULT, "server_groups": [plain, plain]}))
    assert alike["engine_group"] == ["regular1=2", "regular2=2"]
    assert "router" not in alike


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ([{**DEFAULT, "server_groups": [PREFILL]}, {"name": "judge"}], "it serves judge too"),
        ([{**DEFAULT, "server_groups": [{**PREFILL, "worker_type": "encoder"}]}], "of the kinds encoder"),
        ([DEFAULT], "of the kinds none"),
        ([{**DEFAULT, "server_groups": [PREFILL, {**DECODE, "num_gpus_per_engine": 4}]}], "several sizes"),
    ],
)
def test_server_groups_that_have_no_counterpart_are_said(
    models: list[dict[str, Any]], said: str, tmp_path: Path
) -> None:
    rows = translate(of_words(_groups(tmp_path, *models).split()), REGISTRY).rows
    assert (rows[0].outcome.verdict, said in rows[0].outcome.text) == (FlagVerdict.IMPOSSIBLE, True)
    assert settings(_groups(tmp_path, *models))["engines"] == 4, "as without the file"


@cases("import: server groups")
def test_a_broken_file_of_server_groups_is_one_sentence(case: Case, tmp_path: Path) -> None:
    (tmp_path / "groups.yaml").write_text(case.given)
    with case.refused(ConfigError, tmp_path):
        settings(f"--sglang-config {tmp_path / 'groups.yaml'}")


def test_a_function_of_a_file_is_the_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert verdict("--custom-rm-path my.rewards.brevity", "--custom-rm-path") is FlagVerdict.IMPOSSIBLE
    (tmp_path / "my").mkdir()
    (tmp_path / "my" / "rewards.py").write_text("def brevity(args, sample): return 0.0\n")
    found = settings("--rm-type math --custom-rm-path my.rewards.brevity")
    assert (found["plugin"], found["reward"]) == ([str(tmp_path / "my" / "rewards.py")], ["brevity"])


@pytest.mark.parametrize(
    ("text", "flag", "found"),
    [
        ("--lr-decay-iters 40 --num-rollout 20 --num-steps-per-rollout 2", "--lr-decay-iters", "implied"),
        ("--lr-decay-iters 50 --num-rollout 20", "--lr-decay-iters", "not possible"),
        ("--lr-decay-iters 50 --lr-decay-style constant", "--lr-decay-iters", "implied"),
        ("--lr-warmup-iters 3 --num-steps-per-rollout 2", "--lr-warmup-iters", "not possible"),
        ("--load M --hf-checkpoint M/", "--load", "implied"),
        ("--load M --save M", "--load", "implied"),
        ("--load M", "--load", "not possible"),
    ],
)
def test_what_slime_counts_otherwise_is_said(text: str, flag: str, found: str) -> None:
    assert verdict(text, flag) == found


def test_engines_without_a_number_of_gpus_are_told_what_is_missing() -> None:
    with pytest.raises(ConfigError, match="each; --rollout-num-gpus is missing"):
        settings("--rollout-num-gpus-per-engine 2")


def test_a_field_of_megatron_is_a_number() -> None:
    with pytest.raises(ConfigError, match="--adam-eps: found 'abc', expected a number"):
        settings("--adam-eps abc")


def test_a_model_without_a_family_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["OPTForCausalLM"]}')
    rows = translate(of_words(["--hf-checkpoint", str(tmp_path)]), REGISTRY).rows
    assert rows[0].outcome.verdict is FlagVerdict.IMPOSSIBLE
    assert "OPTForCausalLM" in rows[0].outcome.text


@pytest.mark.parametrize(("how", "taken"), [("[128, 128]", True), ("null", False)])
def test_weights_in_fp8_blocks_are_taken_and_others_named(tmp_path: Path, how: str, taken: bool) -> None:
    fp8 = f'{{"quant_method": "fp8", "weight_block_size": {how}}}'
    text = f'{{"architectures": ["Qwen3ForCausalLM"], "quantization_config": {fp8}}}'
    (tmp_path / "config.json").write_text(text)
    found = translate(of_words(["--hf-checkpoint", str(tmp_path)]), REGISTRY)
    assert found.settings.get("model") == (str(tmp_path) if taken else None)
    assert ("not in FP8 blocks" in found.rows[0].outcome.text) == (not taken)


def test_variables_of_the_environment_are_rows() -> None:
    given = {"OPEN_TRAINING_INT4_FAKE_QAT_FLAG": "1", "NCCL_NVLS_ENABLE": "0", "MINE": "x"}
    rows = translate(Arguments(flags={}, environment=given), REGISTRY).rows
    verdicts = {row.flag: row.outcome.verdict for row in rows if row.flag in given}
    assert verdicts == {
        "OPEN_TRAINING_INT4_FAKE_QAT_FLAG": FlagVerdict.IMPOSSIBLE,
        "NCCL_NVLS_ENABLE": FlagVerdict.IDLE,
    }
