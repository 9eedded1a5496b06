"""The settings of one run of verl."""

from typing import ClassVar

from rlcore_import.run import Flags

ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))
MEGATRON = f"{ACTOR}.megatron"
CORRECTION, DISTILLATION = "algorithm.rollout_correction", "distillation"
LEGACY = {
    "reward.custom_reward_function.path": "custom_reward_function.path",
    "reward.custom_reward_function.name": "custom_reward_function.name",
    "reward.reward_manager.name": "reward_model.reward_manager",
    "reward.num_workers": "reward_model.num_workers",
    "reward.reward_model.enable": "reward_model.enable",
    "reward.reward_model.model_path": "reward_model.model.path",
    "reward.reward_model.rollout.tensor_model_parallel_size": (
        "reward_model.rollout.tensor_model_parallel_size"
    ),
}
"""Setting → its earlier name, which verl still takes."""

RECIPES = {
    **{"gae": "ppo", "grpo": "grpo", "grpo_vectorized": "grpo", "grpo_passk": "pass_at_k"},
    **{"rloo": "rloo", "rloo_vectorized": "rloo", "remax": "remax", "opo": "opo", "gpg": "gpg"},
    **{"reinforce_plus_plus": "reinforce++", "reinforce_plus_plus_baseline": "reinforce++-baseline"},
}
"""`algorithm.adv_estimator` → the recipe with this advantage."""
COMPARE = ("rloo", "rloo_vectorized", "opo", "gpg", "grpo_passk", "reinforce_plus_plus_baseline")
"""Estimators for which a group of one has nothing to compare with."""
LOSSES = {
    **{"vanilla": "ppo_clip", "gspo": "gspo", "sapo": "sapo", "gpg": "reinforce", "geo_mean": "gmpo"},
    **{"cispo": "cispo", "clip_cov": "ppo_clip", "kl_cov": "kl_cov", "dppo_tv": "dppo", "dppo_kl": "dppo"},
}
"""`policy_loss.loss_mode` → loss."""


class Run(Flags):
    """The settings of one run, by verl's names."""

    dashes: ClassVar[str] = ""

    def has(self, name: str) -> bool:
        return super().has(name) or (name in LEGACY and super().has(LEGACY[name]))

    def text(self, name: str, default: str = "") -> str:
        legacy = LEGACY.get(name, "")
        return super().text(name, super().text(legacy, default) if legacy else default)

    @property
    def is_megatron(self) -> bool:
        """Whether megatron-core trains."""
        named = (f"{ACTOR}.strategy", "model_engine", "config-name")
        return any("megatron" in self.text(name) for name in named)

    @property
    def context(self) -> int:
        """Ranks that share the tokens of a sample."""
        ulysses = max(
            self.number(f"{ACTOR}.ulysses_sequence_parallel_size", 1),
            self.number(f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size", 1),
        )
        return self.number(f"{MEGATRON}.context_parallel_size", 1) if self.is_megatron else ulysses

    @property
    def trainer(self) -> str:
        """rlcore's trainer `fsdp` gives each rank whole samples."""
        return "megatron" if self.is_megatron or self.context > 1 else "fsdp"

    @property
    def ranks(self) -> int:
        return self.number("trainer.nnodes", 1) * self.number("trainer.n_gpus_per_node", 8)

    @property
    def is_split(self) -> bool:
        """Whether the engines have GPUs of their own."""
        return self.text("trainer.v1.trainer_mode") == "separate_async"

    @property
    def engine_gpus(self) -> int:
        """The GPUs of all engines."""
        if not self.is_split:
            return self.ranks
        each = self.number(f"{ROLLOUT}.n_gpus_per_node", self.number("trainer.n_gpus_per_node", 8))
        return self.number(f"{ROLLOUT}.nnodes", 0) * each

    @property
    def estimator(self) -> str:
        return self.text("algorithm.adv_estimator", "gae")

    @property
    def loss(self) -> str:
        """The loss mode; of bypass mode, that of its own loss type."""
        return self.text(f"{ACTOR}.policy_loss.loss_mode", "vanilla")

    @property
    def bypasses(self) -> bool:
        """Whether the engine's log-probs are the old ones."""
        return self.is_on(f"{CORRECTION}.bypass_mode")

    @property
    def group(self) -> int:
        return self.number(f"{ROLLOUT}.n", 1)

    @property
    def prompts(self) -> int:
        """Prompts of a step."""
        return self.number("data.train_batch_size", 1024)

    @property
    def prompt_tokens(self) -> int:
        return self.number("data.max_prompt_length", 512)

    @property
    def response_tokens(self) -> int:
        return self.number("data.max_response_length", 512)

    @property
    def lora_rank(self) -> int:
        return self.number(f"{MODEL}.lora_rank", 0) or self.number(f"{MODEL}.lora.rank", 0)

    @property
    def kl_place(self) -> str:
        """Where the KL to the reference counts; empty: nowhere."""
        if self.is_on("algorithm.use_kl_in_reward") and self.real("algorithm.kl_ctrl.kl_coef", 0.001):
            return "reward"
        in_loss = self.is_on(f"{ACTOR}.use_kl_loss") and self.real(f"{ACTOR}.kl_loss_coef", 0.001)
        return "loss" if in_loss else ""

    @property
    def distills(self) -> bool:
        return self.is_on(f"{DISTILLATION}.enabled")

    def bound(self, end: str) -> float:
        """A clip of the ratio: `low` or `high`. verl reads `clip_ratio` where that one is null."""
        name = f"{ACTOR}.clip_ratio_{end}"
        is_null = name in self.flags and not self.has(name)
        return self.real(f"{ACTOR}.clip_ratio", 0.2) if is_null else self.real(name, 0.2)
