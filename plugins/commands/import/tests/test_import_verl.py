"""What settings of verl mean together, and how they are read."""

from pathlib import Path

import pytest

from rlcore.api.errors import ConfigError
from rlcore.plugins.loader import load
from rlcore_import.translation import FlagVerdict, Translation
from rlcore_import.verl.overrides import of_words, read
from rlcore_import.verl.run import ACTOR, ROLLOUT, Run
from rlcore_import.verl.translate import translate

REGISTRY = load().registry
LOSS = f"{ACTOR}.policy_loss.loss_mode"


def translated(text: str) -> Translation[Run]:
    return translate(of_words(text.split()), REGISTRY)


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
        ("algorithm.gamma=1 algorithm.adv_estimator=$X", "not known"),
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
    path.write_text("python3 verl/trainer/main_ppo_monarch.py algorithm.norm_adv_by_std_in_grpo=0\n")
    of_monarch = read((str(path), "algorithm.adv_estimator=grpo"), {})
    assert translate(of_monarch, REGISTRY).settings["advantage.std"] is False
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
