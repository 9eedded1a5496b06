"""What flags of slime mean together."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlcore.api.errors import ConfigError
from rlcore.plugins.loader import load
from rlcore_import.arguments import Arguments, of_words
from rlcore_import.slime.translate import translate
from rlcore_import.translation import FlagVerdict

REGISTRY = load().registry


def settings(text: str) -> dict[str, Any]:
    return translate(of_words(text.split()), REGISTRY).settings


def verdict(text: str, flag: str) -> FlagVerdict:
    rows = translate(of_words(text.split()), REGISTRY).rows
    return next(row.outcome.verdict for row in rows if row.flag == flag)


ICEPOP = "slime.backends.megatron_utils.loss.icepop_function"
CASES: dict[str, dict[str, Any]] = {
    "--lr 1e-6": {
        "algo": "grpo",
        "placement": "split",
        "group_size": 1,
        "seed": 1234,
        "loss.clip_high": 0.2,
        "engine.publish": "broadcast",
        "lr_schedule": "linear",
    },
    "--actor-num-nodes 4 --actor-num-gpus-per-node 8 --colocate --rollout-num-gpus-per-engine 16": {
        **{"ranks": 32, "placement": "colocate", "sleep": "all", "engines": 2},
        **{"sglang.tp_size": 16, "sglang.nnodes": 2},
    },
    "--colocate --no-offload-train": {"sleep": "none"},
    "--rollout-num-gpus 8 --rollout-num-gpus-per-engine 4 --sglang-pp-size 2": {
        **{"engines": 2, "sglang.tp_size": 2, "sglang.pp_size": 2},
    },
    "--prefill-num-servers 1 --rollout-num-gpus 8 --rollout-num-gpus-per-engine 2": {
        **{"engines": None, "engine_group": ["prefill=1", "decode=3"], "router": "cache_aware"},
        "engine_group.decode.disaggregation_mode": "decode",
    },
    "--num-experts 8 --tensor-model-parallel-size 4": {"megatron.expert_tensor_parallel_size": 4},
    "train_async.py --lr 1": {"max_staleness": 1},
    "--fully-async --pause-generation-mode in_place": {"max_staleness": 2, "on_publish": "in_place"},
    "train_async.py --fully-async --max-weight-staleness 3": {"max_staleness": 3, "on_publish": None},
    "--max-weight-staleness 3 --pause-generation-mode abort": {"max_staleness": None, "on_publish": None},
    "--eval-num-gpus 8 --rollout-num-gpus-per-engine 4 --rollout-num-gpus 8": {"eval_engines": 2},
    "--prompt-data a.jsonl@[0:10]": {"data": "a.jsonl[0:10]"},
    "--rollout-batch-size 16 --n-samples-per-prompt 4 --global-batch-size 32": {"minibatches": 2},
    "--num-steps-per-rollout 4 --rollout-batch-size 16": {"minibatches": 4},
    "--num-steps-per-rollout 4 --lr-warmup-iters 8 --critic-lr-warmup-iters 4 --critic-lr 1e-5": {
        **{"warmup_steps": 2, "critic.warmup_steps": 1, "critic.lr": 1e-5},
    },
    "--lr-decay-style constant": {"lr_schedule": "constant"},
    "--dynamic-sampling-filter-path "
    "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std": {"max_refills": 100},
    "--advantage-estimator cispo --eps-clip 5.0": {"loss.clip_low": 1.0, "loss.clip_high": 5.0},
    "--eval-prompt-data aime.24 F.jsonl@[0:4]": {"eval.aime_24.data": "F.jsonl[0:4]"},
    "--max-tokens-per-gpu 4096 --context-parallel-size 4 --rollout-max-response-len 8192": {
        "tokens_per_rank": 16384
    },
    "--max-tokens-per-gpu 4096 --rollout-max-response-len 8192": {"tokens_per_rank": 8192 + 1024},
    "--advantage-estimator gspo --eps-clip 4e-4": {
        **{"algo": "gspo", "loss.clip_low": 4e-4, "loss.clip_high": 4e-4},
    },
    "--eps-clip 0.2 --eps-clip-high 0.28 --eps-clip-c 3": {
        **{"loss.clip_low": 0.2, "loss.clip_high": 0.28, "loss.dual_clip": 3},
    },
    "--use-kl-loss --kl-loss-coef 0.01 --kl-loss-type low_var_kl": {
        **{"kl_coef": 0.01, "kl_place": "loss", "kl_estimator": "low_var_kl"},
    },
    "--kl-coef 0.01": {"kl_coef": 0.01, "kl_place": "reward", "kl_estimator": "k1"},
    "--use-tis --tis-clip 3 --tis-clip-low 0.5": {
        **{"correction": ["tis"], "correction.tis.high": 3, "correction.tis.low": 0.5},
    },
    f"--use-tis --custom-tis-function-path {ICEPOP} --use-opsm --num-steps-per-rollout 2": {
        **{"correction": ["icepop", "opsm"], "correction.icepop.high": 2, "correction.opsm.delta": 1e-4},
    },
    "--use-opd --opd-type megatron --opd-teacher-load T --opd-kl-coef 0.5": {
        **{"distill_coef": 0.5, "teacher.model": "T"},
    },
    "--use-opd --opd-type sglang --rm-url http://t:1/generate": {"teacher.url": "http://t:1"},
    "--use-opd --opd-kl-coef 2 --opd-teacher-key teacher --opd-teacher-urls "
    "math=http://m:1/generate default=http://d:2/generate": {
        **{"distill_coef": 2, "teacher.math.url": "http://m:1", "teacher.url": "http://d:2"},
    },
    "--partial-rollout --over-sampling-batch-size 64 --rollout-batch-size 32": {
        **{"partial_rollouts": True, "max_staleness": 1, "over_sample": 2.0},
    },
    "--partial-rollout --mask-offpolicy-in-partial-rollout": {"mask_stale_tokens": True},
    "--disable-rewards-normalization": {"advantage": "reinforce", "advantage.baseline": False},
    "--disable-grpo-std-normalization --normalize-advantages": {
        **{"advantage.std": False, "whiten_advantages": True},
    },
    "--lora-rank 8 --lora-alpha 16 --target-modules q_proj v_proj": {
        **{"lora.rank": 8, "lora.alpha": 16, "lora.targets": ["q_proj", "v_proj"]},
    },
    "--rm-type boxed_math": {"reward": ["math"], "reward.math.boxed": True},
    "--rm-type remote_rm --rm-url http://x": {"reward": ["remote"], "reward.remote.url": "http://x"},
    "--eval-prompt-data a A.jsonl B-2 b --n-samples-per-eval-prompt 4 --rollout-top-k -1 --input-key q": {
        **{"eval.a.data": "A.jsonl", "eval.b_2.data": "b", "eval.b_2.samples": 4, "top_k": 0},
        **{"eval.a.top_k": 0, "eval.a.source.prompt_key": "q", "source.prompt_key": "q"},
    },
    "--loss-type sft_loss --max-tokens-per-gpu 4096 --input-key messages": {
        **{"algo": "sft", "source.messages_key": "messages", "max_prompt_tokens": 2048},
        **{"max_response_tokens": 2048, "tokens_per_rank": 4096},
    },
    "--tensor-model-parallel-size 1 --sequence-parallel": {},
    "--num-layers 48 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 6": {
        "megatron.virtual_pipeline_model_parallel_size": 2
    },
    "--freeze-params-name-list embed head": {
        **{"model_hook": ["freeze"], "model_hook.freeze.pattern": ["embed", "head"]},
    },
    "--use-wandb --wandb-team t --wandb-exp-name n --use-tensorboard --use-mlflow": {
        **{"tracker": ["wandb", "tensorboard", "mlflow"]},
        **{"tracker.wandb.entity": "t", "tracker.wandb.run_name": "n"},
    },
    "--use-pytorch-profiler --profile-step-start 3 --profile-step-end 5": {"profile_steps": "3-4"},
    "--debug-rollout-only": {"only": "rollout"},
    "--rollout-max-context-len 8192 --rollout-max-response-len 2048": {"max_prompt_tokens": 6144},
    "--rollout-max-context-len 8192 --rollout-max-prompt-len 512": {"max_prompt_tokens": 512},
    "--rollout-stop 42 </s>": {"stop": ["42", "</s>"], "shuffle": False},
    "--rollout-shuffle": {"shuffle": True},
    "--advantage-estimator ppo --lr 2e-6": {
        **{"advantage.lam": 1.0, "critic.lr": 2e-6, "whiten_advantages": False, "normalizer": "per_rollout"}
    },
    "--advantage-estimator ppo --lambd 0.9 --normalize-advantages --calculate-per-token-loss": {
        **{"advantage.lam": 0.9, "whiten_advantages": True, "normalizer": "per_token"}
    },
    "--advantage-estimator ppo --critic-num-nodes 2 --actor-num-gpus-per-node 4": {"critic.ranks": 8},
    "--critic-num-nodes 2 --critic-num-gpus-per-node 4": {"critic.ranks": None},
    "--update-weight-transfer-mode disk-delta": {"engine.publish": "delta"},
    "--use-session-server v2": {"generator": "session"},
    "--rollout-external-engine-addrs a:1 http://b:2": {"engine_url": ["http://a:1", "http://b:2"]},
    "--update-weight-buffer-size 536870912 --update-weight-transport disk": {
        **{"engine.bucket_mb": 512, "engine.publish": "disk"},
    },
    '--apply-chat-template-kwargs {"enable_thinking":false}': {
        "source.chat_template_kwargs": {"enable_thinking": False}
    },
    "--num-experts 8 --moe-router-dtype fp32": {"megatron.moe_router_dtype": "fp32"},
    "--moe-aux-loss-coeff 0.01 --moe-router-load-balancing-type seq_aux_loss": {
        **{"megatron.moe_aux_loss_coeff": 0.01, "megatron.moe_router_load_balancing_type": "seq_aux_loss"},
    },
    "--enable-mtp-training --mtp-num-layers 1": {
        **{"megatron.mtp_num_layers": 1, "megatron.mtp_loss_scaling_factor": 0.2},
    },
    "--enable-mtp-training --mtp-num-layers 1 --mtp-loss-scaling-factor 0.3": {
        **{"megatron.mtp_num_layers": 1, "megatron.mtp_loss_scaling_factor": 0.3},
    },
    "--mtp-num-layers 1": {"megatron.mtp_num_layers": None, "megatron.mtp_loss_scaling_factor": None},
    "--sglang-speculative-algorithm EAGLE --sglang-enable-dp-attention": {
        **{"sglang.speculative_algorithm": "EAGLE", "sglang.enable_dp_attention": True},
    },
}


@pytest.mark.parametrize("text", CASES)
def test_flags_mean_together(text: str) -> None:
    found = settings(text)
    assert {name: found.get(name) for name in CASES[text]} == CASES[text]


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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sglang: [", "found no YAML"),
        ("other: 1", "a list of models under `sglang`"),
        ("sglang: [{server_groups: [{num_gpus: 3, num_gpus_per_engine: 2}]}]", "3 GPUs for servers of 2"),
    ],
)
def test_a_broken_file_of_server_groups_is_one_sentence(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "groups.yaml").write_text(text)
    with pytest.raises(ConfigError, match=said):
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
