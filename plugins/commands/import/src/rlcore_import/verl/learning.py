"""The algorithm, its loss and its optimizer.

Each public function is what `settings.toml` names by `by`, as those of `slime.learning` are.
"""

from typing import Any

from rlcore_import.run import Settings
from rlcore_import.translation import Outcome, implied, impossible, literal, translated
from rlcore_import.verl.run import (
    ACTOR,
    COMPARE,
    CORRECTION,
    DISTILLATION,
    LOSSES,
    MEGATRON,
    RECIPES,
    Run,
)

NORMALIZERS = {
    **{"token-mean": "per_token", "seq-mean-token-mean": "per_rollout"},
    **{"seq-mean-token-sum-norm": "constant", "seq-mean-token-sum": "constant", "token-sum": "constant"},
}
ESTIMATORS = {
    **{"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "low_var_kl", "k3": "low_var_kl"},
    **{"k1+": "k2", "k3+": "k2"},
}
"""A name with + has the gradient of k2."""
TEACHER = f"{DISTILLATION}.teacher_models.teacher_model"
CLIPS = ("ppo_clip", "gspo", "gmpo", "cispo")
REJECTIONS = {"token": "token", "seq_mean": "mean", "seq_max": "max"}
LEVELS = {"token": "token", "seq_sum": "sequence", "seq_mean": "geometric"}


def algorithm(run: Run, name: str) -> Outcome | Settings:
    if run.estimator not in RECIPES:
        return impossible(f"expected one of {', '.join(RECIPES)}; write an --advantage (docs/hooks.md)")
    if run.group < 2 and run.estimator in COMPARE:
        return impossible("a group of one has nothing to compare with; give actor_rollout_ref.rollout.n")
    settings: dict[str, Any] = {"algo": RECIPES[run.estimator]}
    if settings["algo"] == "grpo" and run.group < 2 and not _is_taught(run):
        settings["advantage.single"] = "reward"
    return settings


def loss(run: Run, name: str) -> Outcome | Settings:
    mode = run.loss
    if mode not in LOSSES:
        return impossible(f"expected one of {', '.join(LOSSES)}; write a --loss (docs/hooks.md)")
    if run.bypasses and run.text(f"{CORRECTION}.loss_type") == "reinforce":
        return implied(f"{CORRECTION}.loss_type says the loss")
    policy = f"{ACTOR}.policy_loss"
    settings: dict[str, Any] = {"loss": LOSSES[mode], **_bounds(run)}
    if mode == "vanilla" or mode == "clip_cov":
        settings["loss.dual_clip"] = run.real(f"{ACTOR}.clip_ratio_c", 3.0)
    if mode == "clip_cov":
        settings |= {"correction": ["clip_cov"], "loss.dual_clip": None}
        settings["correction.clip_cov.share"] = run.real(f"{policy}.clip_cov_ratio", 2e-4)
        settings["correction.clip_cov.low"] = run.real(f"{policy}.clip_cov_lb", 1.0)
        settings["correction.clip_cov.high"] = run.real(f"{policy}.clip_cov_ub", 5.0)
    elif mode == "kl_cov":
        settings["loss.share"] = run.real(f"{policy}.kl_cov_ratio", 2e-4)
        settings["loss.coef"] = run.real(f"{policy}.ppo_kl_coef", 0.1)
    elif mode == "sapo":
        settings["loss.tau_pos"] = run.real(f"{ACTOR}.tau_pos", 1.0)
        settings["loss.tau_neg"] = run.real(f"{ACTOR}.tau_neg", 1.05)
    elif mode.startswith("dppo"):
        settings |= {"loss.divergence": mode.removeprefix("dppo_")}
        settings |= {"loss.low": run.bound("low"), "loss.high": run.bound("high")}
    return settings


def _bounds(run: Run) -> Settings:
    if LOSSES.get(run.loss) not in CLIPS:
        return {}
    low = run.bound("low")  # no ratio is below 0, but gmpo's bounds are those of its logarithm
    low = low if run.loss == "geo_mean" else min(low, 1.0)
    return {"loss.clip_low": low, "loss.clip_high": run.bound("high")}


def clip(run: Run, name: str) -> Outcome | Settings:
    if name.endswith("clip_ratio") and not (
        {f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high"} & run.flags.keys()
    ):
        return implied("verl reads clip_ratio_low and clip_ratio_high, 0.2 each, and not this one")
    if run.loss.startswith("dppo"):
        return {"loss.low": run.bound("low"), "loss.high": run.bound("high")}
    return _bounds(run) or implied(f"loss_mode {run.loss} does not read it")


def loss_setting(run: Run, name: str) -> Outcome | Settings:
    """The field of one loss mode, which `loss` reads as a whole."""
    last, settings = name.rpartition(".")[2], loss(run, name)
    setting = {
        **{"clip_ratio_c": "loss.dual_clip", "tau_pos": "loss.tau_pos", "tau_neg": "loss.tau_neg"},
        **{"kl_cov_ratio": "loss.share", "ppo_kl_coef": "loss.coef"},
        **{"clip_cov_ratio": "correction.clip_cov.share", "clip_cov_lb": "correction.clip_cov.low"},
        "clip_cov_ub": "correction.clip_cov.high",
    }[last]
    if isinstance(settings, Outcome) or settings.get(setting) is None:
        return implied(f"loss_mode {run.loss} does not read it")
    return {setting: settings[setting]}


def normalizer(run: Run, name: str) -> Outcome | Settings:
    mode = run.text(name, "token-mean")
    if mode not in NORMALIZERS:
        return impossible(f"expected one of {', '.join(NORMALIZERS)}")
    same = "token-sum" not in mode or mode.endswith("norm")
    remark = "" if same else "the same direction; the gradient is smaller by a constant, so mind --clip-grad"
    return translated({"normalizer": NORMALIZERS[mode]}, remark)


def scale(run: Run, name: str) -> Outcome:
    if run.number(name, 0) == run.response_tokens:
        return implied("--normalizer constant divides by --max-response-tokens")
    return impossible("--normalizer constant divides by --max-response-tokens")


def kl(run: Run, name: str) -> Outcome | Settings:
    if not run.kl_place:
        return implied("there is no KL term, and no reference is loaded")
    is_loss = run.kl_place == "loss"
    if is_loss is not name.startswith(ACTOR):
        why = f"the KL stands in the {run.kl_place}"
        return impossible(f"{why} already, and rlcore has one place") if run.is_on(name) else implied(why)
    at = f"{ACTOR}.kl_loss_type" if is_loss else "algorithm.kl_penalty"
    form = run.text(at, "low_var_kl" if is_loss else "kl")
    if form not in ESTIMATORS:
        return impossible(f"{at}: found {form}, expected one of {', '.join(ESTIMATORS)}")
    coefficient = f"{ACTOR}.kl_loss_coef" if is_loss else "algorithm.kl_ctrl.kl_coef"
    settings: dict[str, Any] = {"kl_coef": run.real(coefficient, 0.001), "kl_place": run.kl_place}
    return settings | {"kl_estimator": ESTIMATORS[form]}


def adaptive(run: Run, name: str) -> Outcome | Settings:
    if run.text("algorithm.kl_ctrl.type", "fixed") == "fixed" or run.kl_place != "reward":
        return implied("the coefficient is fixed")
    gain = run.prompts * run.group / run.real("algorithm.kl_ctrl.horizon", 10000)
    target = run.real("algorithm.kl_ctrl.target_kl", 0.1)
    at = "callback.adaptive_kl"
    return {"callback": ["adaptive_kl"], f"{at}.target": target, f"{at}.gain": gain}


def correction(run: Run, name: str) -> Outcome | Settings:
    if run.bypasses:
        return implied("in bypass mode the engine's log-probs are the old ones")
    level = run.text(f"{CORRECTION}.rollout_is", "null")
    threshold = run.text(f"{CORRECTION}.rollout_is_threshold", "2.0")
    if level == "null":
        return implied("without rollout_is no token is weighed")
    low, _, high = threshold.rpartition("_")
    if level not in ("token", "sequence") or not isinstance(literal(high), int | float):
        return impossible(f"found {level} and {threshold}, expected token or sequence and a bound")
    if run.is_on(f"{CORRECTION}.rollout_is_batch_normalize"):
        part, more = "self_normalized", {"level": level}
    elif low:
        part = "icepop" if level == "token" else "mis"
        more = {"low": literal(low)} | ({"level": level, "mode": "mask"} if part == "mis" else {})
    else:
        part, more = ("tis", {}) if level == "token" else ("mis", {"level": level, "mode": "truncate"})
    at = {f"correction.{part}.{field}": value for field, value in {**more, "high": literal(high)}.items()}
    return {"correction": [part], **at}


def rejection(run: Run, name: str) -> Outcome | Settings:
    """Tokens or samples that are left out. verl's k1 is the log of the engine's ratio to the trainer."""
    if run.bypasses or not run.has(f"{CORRECTION}.rollout_rs"):
        return implied("no sample is left out")
    level, _, estimator = run.text(f"{CORRECTION}.rollout_rs").rpartition("_")
    low, _, high = run.text(f"{CORRECTION}.rollout_rs_threshold").rpartition("_")
    bound, least = (literal(text or "0") for text in (high, low))
    if isinstance(bound, int | float) and isinstance(least, int | float) and bound > 0:
        if estimator == "k1" and level in LEVELS:
            part, more = "mis", {"mode": "reject", "low": 1 / bound, "high": 1 / least if least else bound}
            at = {"level": LEVELS[level], **more}
            return {"correction": [part], **{f"correction.mis.{field}": value for field, value in at.items()}}
        if level in REJECTIONS and estimator in ("k2", "k3"):
            at = {"estimator": estimator, "level": REJECTIONS[level], "high": bound}
            named = {f"correction.divergence.{field}": value for field, value in at.items()}
            return {"correction": ["divergence"], **named}
    return impossible(
        "expected one criterion, token, seq_sum (k1 alone), seq_mean or seq_max with _k1, _k2 or _k3"
    )


def bypass(run: Run, name: str) -> Outcome | Settings:
    if not run.bypasses:
        return implied("the trainer's log-probs are the old ones")
    old: dict[str, Any] = {"old_log_probs": "rollout"}
    if run.text(f"{CORRECTION}.loss_type", "ppo_clip") == "ppo_clip":
        return old
    level = run.text(f"{CORRECTION}.rollout_is", "null")
    high = literal(run.text(f"{CORRECTION}.rollout_is_threshold", "2.0"))
    if level == "null":
        return {**old, "loss": "reinforce"}
    is_normalized = run.is_on(f"{CORRECTION}.rollout_is_batch_normalize")
    if level == "token" and isinstance(high, int | float) and not is_normalized:
        return {**old, "loss": "cispo", "loss.clip_low": 1.0, "loss.clip_high": max(high - 1, 1e-6)}
    return impossible("--loss cispo bounds the weight of each token, not of a sequence; leave loss_type out")


def minibatches(run: Run, name: str) -> Outcome | Settings:
    mini = run.number(f"{ACTOR}.ppo_mini_batch_size", 256)
    if name.startswith("critic"):
        same = run.number(name, mini) == mini
        return implied("as the policy's") if same else impossible("the critic has the policy's mini-batches")
    if mini < 1 or run.prompts % mini:
        return impossible(f"{mini} does not divide data.train_batch_size {run.prompts}")
    return {"minibatches": run.prompts // mini}


def tokens(run: Run, name: str) -> Outcome | Settings:
    """Whole samples go into a micro-batch, so it holds the longest."""
    longest = run.prompt_tokens + run.response_tokens
    if run.is_on(f"{ACTOR}.use_dynamic_bsz"):
        packed = run.number(f"{ACTOR}.ppo_max_token_len_per_gpu", 16384) * run.context
    else:
        packed = run.number(f"{ACTOR}.ppo_micro_batch_size_per_gpu", 1) * longest
    return {"tokens_per_rank": max(packed, longest)}


def _at(name: str) -> str:
    return "critic." if name.startswith("critic") else ""


def lr(run: Run, name: str) -> Settings:
    return {f"{_at(name)}lr": run.real(name, 1e-6)}


def schedule(run: Run, name: str) -> Outcome | Settings:
    kind, table = run.text(name, "constant"), name.rpartition(".")[0]
    if name.endswith("lr_decay_style") is not run.is_megatron:
        return implied("of another trainer")
    if kind not in ("constant", "linear", "cosine"):
        return impossible("--lr-schedule is constant, linear or cosine")
    if kind == "cosine" and run.real(f"{table}.num_cycles", 0.5) != 0.5:
        return impossible(f"{table}.num_cycles: a cosine has half a cycle, 0.5")
    return {f"{_at(name)}lr_schedule": kind}


def min_lr(run: Run, name: str) -> Outcome | Settings:
    table, last = name.rpartition(".")[::2]
    value = run.real(name, 0)
    if last == "min_lr_ratio":
        value *= run.real(f"{table}.lr", 1e-5 if _at(name) else 1e-6)
    return {f"{_at(name)}min_lr": value} if value else implied("the rate falls to 0")


def warmup(run: Run, name: str) -> Outcome | Settings:
    table = name.rpartition(".")[0]
    steps, share = run.number(f"{table}.lr_warmup_steps", -1), run.real(f"{table}.lr_warmup_steps_ratio", 0)
    if not (steps > 0 or share):
        return implied("there is no warm-up")
    return {f"{_at(name)}warmup_steps": steps if steps > 0 else share}


def decay(run: Run, name: str) -> Settings:
    return {f"{_at(name)}weight_decay": run.real(name, 0.01)}


def clip_grad(run: Run, name: str) -> Settings:
    return {f"{_at(name)}clip_grad": run.real(name, 1.0)}


def betas(run: Run, name: str) -> Outcome | Settings:
    found = [literal(text) for text in run.flags[name]]
    if found == [0.9, 0.999]:
        return implied("Adam's betas are 0.9 and 0.999")
    if run.trainer != "megatron" or _at(name) or len(found) != 2:
        return impossible("--trainer fsdp and the critic have Adam's betas 0.9 and 0.999")
    return {"megatron.adam_beta1": found[0], "megatron.adam_beta2": found[1]}


def optimizer(run: Run, name: str) -> Outcome | Settings:
    chosen = run.text(name).lower()
    if chosen in ("adamw", "adam"):
        return implied("AdamW")
    if chosen not in ("sgd", "muon") or not run.is_megatron or _at(name):
        return impossible("expected AdamW; sgd and muon with megatron")
    return {"megatron.optimizer": chosen}


def optimizer_field(run: Run, name: str) -> Outcome | Settings:
    """One of megatron-core's own, by its own name."""
    last = name.rpartition(".")[2]
    if not run.is_megatron or _at(name):
        return implied("of megatron's optimizer for the policy")
    if last.startswith("muon") and run.text(f"{ACTOR}.optim.optimizer") != "muon":
        return implied("the optimizer is AdamW")
    if last.endswith("dtype") and not run.is_on(f"{ACTOR}.optim.use_precision_aware_optimizer"):
        return implied("the moments are in fp32")
    return {f"megatron.{last}": literal(run.text(name))}


def distillation(run: Run, name: str) -> Outcome | Settings:
    if not run.distills:
        return implied("there is no teacher")
    settings = _distilled(run)
    if isinstance(settings, Outcome):
        return settings
    if name.endswith("model_path"):
        model = run.text(name)
        size = run.number(f"{TEACHER}.inference.tensor_model_parallel_size", 2)
        served: dict[str, Any] = {"frozen": [f"teacher={model}"], "teacher.url": "frozen:teacher"}
        return served | ({"frozen.teacher.tp_size": size} if size > 1 else {})
    return settings


def _is_taught(run: Run) -> bool:
    """Whether the teacher alone says what is learned."""
    settings = _distilled(run)
    return not isinstance(settings, Outcome) and "advantage" in settings


def _distilled(run: Run) -> Outcome | Settings:
    at = f"{DISTILLATION}.distillation_loss"
    mode = run.text(f"{at}.loss_mode", "k3")
    if not run.distills:
        return {}
    if "topk" in mode:
        return impossible(
            "--algo opd with --loss.top-k and --teacher.model learns the likeliest tokens, by the reverse KL"
        )
    if run.is_on(f"{at}.use_task_rewards", True):
        return {"distill_coef": run.real(f"{at}.distillation_loss_coef", 1.0)}
    if run.is_on(f"{at}.use_policy_gradient"):
        return {"advantage": "zero", "distill_coef": 1.0}
    without = dict.fromkeys(("loss.clip_low", "loss.clip_high", "loss.dual_clip"))
    return {"algo": "opd", "advantage": "zero", "loss": "distill", **without}


def balancing(run: Run, name: str) -> Outcome | Settings:
    at = f"{MEGATRON}.override_transformer_config.moe_"
    coefficient = run.real(f"{at}aux_loss_coeff", 0)
    if not coefficient or run.text(f"{at}router_load_balancing_type") == "none":
        return implied("no balancing loss: rlcore's default")
    if run.text(f"{at}router_load_balancing_type") != "seq_aux_loss":
        return impossible("--megatron.moe-router-load-balancing-type seq_aux_loss alone")
    return {f"megatron.{name.rpartition('.')[2]}": literal(run.text(name))}


def megatron_field(run: Run, name: str) -> Outcome | Settings:
    """A field of megatron-core's config classes, by its own name."""
    last = name.rpartition(".")[2]
    if not name.startswith(MEGATRON):
        same = run.text(name) == run.text(f"{MEGATRON}.{name.partition('.megatron.')[2]}")
        return implied("as the policy's") if same else impossible("it is as the policy's, on its workers")
    if last == "recompute_modules":
        at = f"{MEGATRON}.override_transformer_config.recompute_granularity"
        is_by_parts = run.text(at) == "selective"
        return {f"megatron.{last}": list(run.flags[name])} if is_by_parts else implied("whole layers are")
    return {f"megatron.{last}": literal(run.text(name))}
