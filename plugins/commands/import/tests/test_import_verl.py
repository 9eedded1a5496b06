"""What settings of verl mean together, and how they are read."""

from pathlib import Path
from typing import Any

import pytest

from rlcore.api.errors import ConfigError
from rlcore.plugins.loader import load
from rlcore_cli.main import run
from rlcore_import.translation import FlagVerdict, Translation
from rlcore_import.verl.overrides import of_words, read
from rlcore_import.verl.run import ACTOR, CORRECTION, MEGATRON, MODEL, ROLLOUT, Run
from rlcore_import.verl.translate import translate

REGISTRY = load().registry
GRPO = "algorithm.adv_estimator=grpo"
LOSS = f"{ACTOR}.policy_loss.loss_mode"
OPTIM = f"{ACTOR}.optim"


def translated(text: str) -> Translation[Run]:
    return translate(of_words(text.split()), REGISTRY)


CASES: dict[str, dict[str, Any]] = {
    "data.seed=1": {
        **{"algo": "ppo", "loss": "ppo_clip", "loss.dual_clip": 3.0, "normalizer": "per_token"},
        **{"advantage.lam": 1.0, "value_loss.clip": 0.5, "critic.lr": 1e-5, "weight_decay": 0.01},
        **{"prompts_per_step": 1024, "group_size": 1, "minibatches": 4, "epochs": 30, "engines": 4},
        **{"trainer": "fsdp", "trainer.recompute": True, "seed": 1, "placement": None},
    },
    f"{GRPO} {ROLLOUT}.n=8 data.train_batch_size=512 {ACTOR}.ppo_mini_batch_size=64": {
        **{"algo": "grpo", "prompts_per_step": 512, "group_size": 8, "minibatches": 8},
        "advantage.single": None,
    },
    GRPO: {"advantage.single": "reward"},
    f"{ACTOR}.use_dynamic_bsz=True {ACTOR}.ppo_max_token_len_per_gpu=4096 {MEGATRON}.context_parallel_size=2 "
    f"{ACTOR}.strategy=megatron": {
        **{"tokens_per_rank": 8192, "trainer": "megatron", "megatron.context_parallel_size": 2},
    },
    f"{ACTOR}.ppo_micro_batch_size_per_gpu=4": {"tokens_per_rank": 4096},
    f"{ACTOR}.ulysses_sequence_parallel_size=4": {
        **{"trainer": "megatron", "megatron.context_parallel_size": 4},
    },
    f"{ACTOR}.clip_ratio_low=0.2 {ACTOR}.clip_ratio_high=0.28 {ACTOR}.clip_ratio_c=10": {
        **{"loss.clip_low": 0.2, "loss.clip_high": 0.28, "loss.dual_clip": 10.0},
    },
    f"{ACTOR}.clip_ratio=0.1": {"loss.clip_low": 0.2, "loss.clip_high": 0.2},
    f"{ACTOR}.clip_ratio=0.1 {ACTOR}.clip_ratio_low=null {ACTOR}.clip_ratio_high=null": {
        **{"loss.clip_low": 0.1, "loss.clip_high": 0.1},
    },
    f"{GRPO} {LOSS}=gspo {ACTOR}.clip_ratio_low=3e-4 {ACTOR}.loss_agg_mode=seq-mean-token-mean": {
        **{"algo": "grpo", "loss": "gspo", "loss.clip_low": 3e-4, "loss.dual_clip": None},
        "normalizer": "per_rollout",
    },
    f"{GRPO} {LOSS}=cispo {ACTOR}.clip_ratio_low=10": {"loss": "cispo", "loss.clip_low": 1.0},
    f"{LOSS}=geo_mean {ACTOR}.clip_ratio_low=4": {"loss": "gmpo", "loss.clip_low": 4.0},
    f"{LOSS}=sapo {ACTOR}.tau_neg=1.1": {"loss": "sapo", "loss.tau_pos": 1.0, "loss.tau_neg": 1.1},
    f"{LOSS}=kl_cov": {"loss": "kl_cov", "loss.share": 2e-4, "loss.coef": 0.1},
    f"{LOSS}=clip_cov": {"correction": ["clip_cov"], "correction.clip_cov.high": 5.0},
    f"{LOSS}=dppo_kl {ACTOR}.clip_ratio_high=0.15": {
        **{"loss": "dppo", "loss.divergence": "kl", "loss.low": 0.2, "loss.high": 0.15},
    },
    f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm": {"normalizer": "constant"},
    f"algorithm.adv_estimator=rloo {ROLLOUT}.n=4": {"algo": "rloo", "loss": "ppo_clip"},
    f"{GRPO} algorithm.norm_adv_by_std_in_grpo=False": {"advantage.std": False},
    "algorithm.adv_estimator=reinforce_plus_plus algorithm.gamma=0.99 algorithm.lam=0.9": {
        **{"algo": "reinforce++", "advantage.gamma": 0.99, "advantage.lam": None},
    },
    f"{ACTOR}.use_kl_loss=True {ACTOR}.kl_loss_coef=0.01 {ACTOR}.kl_loss_type=mse": {
        **{"kl_coef": 0.01, "kl_place": "loss", "kl_estimator": "k2"},
    },
    f"{ACTOR}.use_kl_loss=True": {"kl_coef": 0.001, "kl_estimator": "low_var_kl"},
    f"{ACTOR}.kl_loss_coef=0.01": {"kl_coef": None},
    "algorithm.use_kl_in_reward=True algorithm.kl_ctrl.kl_coef=0.02 algorithm.kl_ctrl.type=adaptive": {
        **{"kl_coef": 0.02, "kl_place": "reward", "kl_estimator": "k1", "callback": ["adaptive_kl"]},
        "callback.adaptive_kl.gain": 0.1024,
    },
    f"{OPTIM}.lr=2e-6 {OPTIM}.lr_warmup_steps_ratio=0.1 {OPTIM}.lr_scheduler_type=cosine "
    f"{OPTIM}.min_lr_ratio=0.5": {
        **{"lr": 2e-6, "warmup_steps": 0.1, "lr_schedule": "cosine", "min_lr": 1e-6},
    },
    f"{OPTIM}.lr_warmup_steps=10 {OPTIM}.lr_warmup_steps_ratio=0.1": {"warmup_steps": 10},
    "critic.optim.lr_warmup_steps=5 critic.optim.weight_decay=0": {
        **{"critic.warmup_steps": 5, "critic.weight_decay": 0.0},
    },
    f"{MODEL}.lora_rank=32 {MODEL}.lora_alpha=16 {MODEL}.target_modules=all-linear": {
        **{"lora.rank": 32, "lora.alpha": 16.0, "lora.targets": ["all-linear"]},
    },
    f"{MODEL}.lora.rank=8 {MODEL}.lora.alpha=64 "
    f"{MODEL}.lora.target_modules=[linear_qkv,linear_proj,linear_fc1,linear_fc2]": {
        **{"lora.rank": 8, "lora.alpha": 64.0, "lora.targets": ["all-linear"]},
    },
    f"trainer.nnodes=4 trainer.n_gpus_per_node=8 {ROLLOUT}.tensor_model_parallel_size=16": {
        **{"ranks": 32, "engines": 2, "sglang.tp_size": 16, "sglang.nnodes": 2},
    },
    f"{ROLLOUT}.tensor_model_parallel_size=2 {ROLLOUT}.data_parallel_size=4 "
    f"{ROLLOUT}.expert_parallel_size=8": {
        **{"engines": 1, "sglang.tp_size": 8, "sglang.dp_size": 4, "sglang.ep_size": 8},
    },
    f"trainer.v1.trainer_mode=separate_async {ROLLOUT}.nnodes=1 {ROLLOUT}.tensor_model_parallel_size=2": {
        **{"placement": "split", "max_staleness": 7, "engines": 4, "engine.publish": "broadcast"},
    },
    "trainer.v1.trainer_mode=colocate_async": {"partial_rollouts": True, "max_staleness": 1},
    f"{ACTOR}.fsdp_config.param_offload=True {ACTOR}.fsdp_config.optimizer_offload=True": {"sleep": "all"},
    f"{CORRECTION}.rollout_is=token {CORRECTION}.rollout_is_threshold=5": {
        **{"correction": ["tis"], "correction.tis.high": 5},
    },
    f"{CORRECTION}.rollout_is=sequence": {
        **{"correction": ["mis"], "correction.mis.level": "sequence", "correction.mis.mode": "truncate"},
    },
    f"{CORRECTION}.rollout_rs=token_k1 {CORRECTION}.rollout_rs_threshold=0.5_2.0": {
        **{"correction": ["mis"], "correction.mis.mode": "reject"},
        **{"correction.mis.low": 0.5, "correction.mis.high": 2.0},
    },
    f"{CORRECTION}.rollout_rs=seq_mean_k3 {CORRECTION}.rollout_rs_threshold=0.1": {
        **{"correction": ["divergence"], "correction.divergence.level": "mean"},
    },
    f"{CORRECTION}.bypass_mode=True {CORRECTION}.rollout_is=token": {
        **{"old_log_probs": "rollout", "correction": None, "loss": "ppo_clip"},
    },
    f"{CORRECTION}.bypass_mode=True {CORRECTION}.rollout_is=token {CORRECTION}.loss_type=reinforce": {
        **{"old_log_probs": "rollout", "loss": "cispo", "loss.clip_high": 1.0},
    },
    "algorithm.filter_groups.enable=True algorithm.filter_groups.max_num_gen_batches=10": {
        **{"filter": ["zero_std"], "max_refills": 10},
    },
    "data.max_response_length=4096 reward_model.reward_manager=dapo "
    "+reward_model.reward_kwargs.overlong_buffer_cfg.enable=True "
    "+reward_model.reward_kwargs.overlong_buffer_cfg.len=1024": {
        **{"filter": ["overlong"], "filter.overlong.max_tokens": 4096, "filter.overlong.buffer": 1024},
    },
    "recipe.dapo.main_dapo data.max_response_length=4096 "
    "reward_model.overlong_buffer.enable=True reward_model.overlong_buffer.len=1024": {
        **{"filter": ["overlong"], "filter.overlong.max_tokens": 4096, "filter.overlong.buffer": 1024},
    },
    "custom_reward_function.path=score.py": {"reward": ["score.py:compute_score"]},
    "custom_reward_function.path=$HERE/score.py": {"reward": None},  # no other one in its place
    "reward.reward_model.enable=True reward.reward_model.model_path=RM": {
        **{"frozen": ["rm=RM"], "reward": ["reward_model"], "reward.reward_model.url": "frozen:rm"},
    },
    "distillation.enabled=True distillation.distillation_loss.use_task_rewards=False "
    "distillation.distillation_loss.use_policy_gradient=True "
    f"distillation.teacher_models.teacher_model.model_path=T {GRPO}": {
        **{"advantage": "zero", "loss": "ppo_clip", "distill_coef": 1.0, "teacher.url": "frozen:teacher"},
        "advantage.single": None,
    },
    "data.train_files=['a/gsm8k/train.parquet','a/math.parquet'] data.val_files=a/gsm8k/test.parquet "
    f"{ROLLOUT}.val_kwargs.n=4 {ROLLOUT}.val_kwargs.temperature=0.6 {ROLLOUT}.val_kwargs.do_sample=True": {
        "data": ["gsm8k=a/gsm8k/train.parquet", "math=a/math.parquet"],
        **{"eval.gsm8k.data": "a/gsm8k/test.parquet", "eval.gsm8k.samples": 4, "eval.gsm8k.temperature": 0.6},
    },
    f"data.val_files=t.parquet {ROLLOUT}.val_kwargs.temperature=0.6": {"eval.t.temperature": 0.0},
    "trainer.total_training_steps=50 trainer.total_epochs=3 trainer.test_freq=-1": {
        **{"steps": 50, "epochs": None, "eval_every": 0},
    },
    "trainer.logger=['console','swanlab','wandb'] trainer.project_name=P": {
        **{"tracker": ["wandb"], "tracker.wandb.project": "P"},
    },
    "data.apply_chat_template_kwargs={enable_thinking:False}": {
        "source.chat_template_kwargs.enable_thinking": False,
    },
    "+data.apply_chat_template_kwargs.enable_thinking=False": {
        "source.chat_template_kwargs.enable_thinking": False,
    },
}


@pytest.mark.parametrize("text", CASES)
def test_settings(text: str) -> None:
    found = translated(text).settings
    assert {name: found.get(name) for name in CASES[text]} == CASES[text]


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("algorithm.adv_estimator=gdpo", "not possible"),
        ("algorithm.adv_estimator=rloo", "not possible"),
        (f"{LOSS}=dro", "not possible"),
        (f"{ACTOR}.ppo_epochs=2", "not possible"),
        (f"{ACTOR}.ppo_mini_batch_size=100", "not possible"),
        (f"{ACTOR}.kl_loss_type=abs {ACTOR}.use_kl_loss=True", "not possible"),
        (f"{ROLLOUT}.tensor_model_parallel_size=3", "not possible"),
        (f"{ROLLOUT}.multi_turn.enable=True", "not possible"),
        (f"{ROLLOUT}.multi_turn.enable=False", "implied"),
        (f"{ACTOR}.use_prefix_grouper=True", "not possible"),
        ("trainer.logger=['swanlab']", "not possible"),
        ("reward.custom_reward_function.path=null", "implied"),
        ("custom_reward_function.reward_kwargs.bonus=1", "not possible"),
        ("critic.optim.lr=1e-4 algorithm.adv_estimator=grpo", "implied"),
        ("data.truncation=left", "no meaning"),
        ("data.train_files=$HOME/a.parquet", "not known"),
        ("data.train_batch_sise=8", "unknown"),
    ],
)
def test_verdicts(text: str, verdict: str) -> None:
    assert translated(text).rows[0].outcome.verdict is FlagVerdict(verdict)


SCRIPT = """
set -x
HOME_DIR=${HOME_DIR:-/data}
rollout_n=${ROLLOUT_N:-5}
LAUNCH=(python3)
if [ "${USE_UV:-1}" != 0 ]; then
    LAUNCH=(uv run --frozen python3)
fi
DATA=(
    data.train_files="['$HOME_DIR/a.parquet', '$HOME_DIR/b.parquet']"
    data.max_response_length=$((1024 * 2))
)
ROLLOUT=(
    actor_rollout_ref.rollout.n=${rollout_n}
    +actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend=fa3
)
EXTRA=()
[ "$rollout_n" -gt 4 ] && EXTRA+=(trainer.logger='["console","tensorboard"]')
"${LAUNCH[@]}" -m verl.trainer.main_ppo \
    --config-name=ppo_megatron_trainer.yaml \
    "${DATA[@]}" "${ROLLOUT[@]}" "${EXTRA[@]}" \
    trainer.project_name='two words' "$@"
"""


def test_a_run_script_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT)
    found = translate(read((str(path), "data.seed=7"), {}), REGISTRY).settings
    wanted = {
        "data": ["a=/data/a.parquet", "b=/data/b.parquet"],
        **{"max_response_tokens": 2048, "group_size": 5, "tracker": ["tensorboard"], "seed": 7},
        **{"sglang.attention_backend": "fa3", "trainer": "megatron"},
    }
    assert wanted.items() <= found.items()
    path.write_text("torchrun -m verl.trainer.sft_trainer data.train_files=a.parquet\n")
    with pytest.raises(ConfigError, match="sft_trainer: expected main_ppo"):
        translate(read((str(path),), {}), REGISTRY)


def test_references_of_a_yaml_are_followed(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "data: {max_prompt_length: 64, seed: '${oc.select:other.seed,3}'}\n"
        "critic: {ppo_epochs: '${.again}', again: '${actor_rollout_ref.actor.ppo_epochs}'}\n"
        "actor_rollout_ref: {actor: {ppo_epochs: 2, loss_agg_mode: null}}\n"
    )
    flags = read((str(path),), {}).flags
    assert (flags["data.seed"], flags["critic.ppo_epochs"]) == (("3",), ("2",))
    assert flags["actor_rollout_ref.actor.loss_agg_mode"] == ("null",)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["data.seed=1", "now"], "found 'now', expected a run script or overrides such as data.seed=1."),
        (["gone.yaml"], "gone.yaml: found no YAML"),
        (["data.max_prompt_length=many"], "data.max_prompt_length: found 'many', expected an integer."),
        (["data.train_batch_sise=8"], "data.train_batch_sise: unknown; correct the name"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    args: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["import", "verl", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
