"""The bundled recipes: each resolves, each is what its paper says, and each refuses what does not fit it."""

from pathlib import Path
from typing import Any

import pytest
from runs import installed, run_of

from rlcore.api.errors import ConfigError, DataError, UserError
from rlcore.api.inputs import Input, TrainsOn
from rlcore.api.records import Algorithm, Kind
from rlcore.runtime.prepare import prepare

NAMES = installed().registry.names(Kind.ALGORITHM)
WITH: dict[str, dict[str, Any]] = {"opd": {"teacher_url": "http://127.0.0.1:30000"}}
"""What a recipe leaves to the user."""


@pytest.mark.parametrize("name", NAMES)
def test_each_recipe_resolves(name: str) -> None:
    """Its parts are there, load and take their settings, and its run comes back from what it writes."""
    found, record = run_of(name, WITH.get(name)), installed().registry.find(Kind.ALGORITHM, name, "").record
    assert isinstance(record, Algorithm)
    assert found.algorithm == name
    assert found.trains_on is record.trains_on
    assert found.flat()["loss"] == record.parts["loss"]
    optional = [part for part in (found.advantage, found.value_loss) if part is not None]
    for part in (found.loss, *optional, *found.filters, *found.corrections, *found.rewards):
        part.build()
    assert record.paper.startswith("https://")


SAMPLED: dict[str, Any] = {
    "group_size": 16,
    "entropy_coef": 0.2,
    "whiten_advantages": False,
    "kl_coef": 0.0,
    "old_log_probs": "trainer",
    "value_loss": None,
    "filter": ["keep_all"],
    "correction": [],
}
"""With the tiny preset of `qwen3`, which suggests group size and entropy bonus."""

GROUP = {"advantage": "grpo", "advantage.std": True, "advantage.eps": 1e-6, "advantage.single": "zero"}
PPO_CLIP = {"loss": "ppo_clip", "loss.clip_low": 0.2, "loss.clip_high": None, "loss.dual_clip": None}
SUMMED = {
    "loss": "reinforce",
    "normalizer": "constant",
    "entropy_coef": 0.02,
    "filter": [],
}
GIVEN = {"entropy_coef": 0.0, "kl_coef": 0.0, "old_log_probs": "trainer", "whiten_advantages": False}

VETTED: dict[str, dict[str, Any]] = {
    "grpo": {**SAMPLED, **GROUP, **PPO_CLIP, "normalizer": "per_rollout"},
    "dr_grpo": {
        **SAMPLED,
        **GROUP,
        **PPO_CLIP,
        "advantage.std": False,
        "normalizer": "constant",
        "entropy_coef": 0.02,
    },
    "dapo": {
        **SAMPLED,
        **GROUP,
        **PPO_CLIP,
        "loss.clip_high": 0.28,
        "normalizer": "per_token",
        "filter": ["zero_std"],
    },
    "gspo": {
        **SAMPLED,
        **GROUP,
        "loss": "gspo",
        "loss.clip_low": 3e-4,
        "loss.clip_high": 4e-4,
        "normalizer": "per_rollout",
    },
    "cispo": {
        **SAMPLED,
        **GROUP,
        "loss": "cispo",
        "loss.clip_low": 1.0,
        "loss.clip_high": 4.0,
        "normalizer": "per_token",
        "filter": ["zero_std"],
    },
    "sapo": {
        **SAMPLED,
        **GROUP,
        "loss": "sapo",
        "loss.tau_pos": 1.0,
        "loss.tau_neg": 1.05,
        "normalizer": "per_rollout",
    },
    "max_rl": {**SAMPLED, **PPO_CLIP, "advantage": "max_rl", "normalizer": "per_token"},
    "ppo": {
        **SAMPLED,
        **PPO_CLIP,
        "advantage": "gae",
        "advantage.gamma": 1.0,
        "advantage.lam": 0.95,
        "value_loss": "clipped",
        "value_loss.clip": 0.2,
        "normalizer": "per_token",
        "whiten_advantages": True,
    },
    "reinforce": {
        **SAMPLED,
        **SUMMED,
        "advantage": "reinforce",
        "advantage.gamma": 1.0,
        "advantage.baseline": True,
    },
    "rloo": {**SAMPLED, **SUMMED, "advantage": "rloo"},
    "opo": {**SAMPLED, **SUMMED, "advantage": "opo"},
    "gpg": {**SAMPLED, **SUMMED, "advantage": "gpg", "normalizer": "per_token"},
    "pass_at_k": {
        **SAMPLED,
        **PPO_CLIP,
        "advantage": "pass_at_k",
        "advantage.k": 4,
        "normalizer": "per_token",
    },
    "dppo": {
        **SAMPLED,
        **GROUP,
        "loss": "dppo",
        "loss.divergence": "tv",
        "loss.low": 0.15,
        "loss.high": 0.15,
        "normalizer": "per_rollout",
        "old_log_probs": "rollout",
    },
    "kl_cov": {
        **SAMPLED,
        **GROUP,
        "loss": "kl_cov",
        "loss.share": 2e-3,
        "loss.coef": 1.0,
        "normalizer": "per_token",
    },
    "luspo": {
        **SAMPLED,
        **GROUP,
        "loss": "gspo",
        "loss.clip_low": 3e-4,
        "loss.clip_high": 4e-4,
        "normalizer": "constant",
    },
    "gmpo": {
        **SAMPLED,
        **GROUP,
        "loss": "gmpo",
        "loss.clip_low": 0.4,
        "loss.clip_high": 0.4,
        "normalizer": "per_rollout",
    },
    "vespo": {
        **SAMPLED,
        **GROUP,
        "loss": "vespo",
        "loss.k_pos": 2.0,
        "loss.lambda_pos": 3.0,
        "loss.k_neg": 3.0,
        "loss.lambda_neg": 2.0,
        "normalizer": "per_token",
    },
    "remax": {**SAMPLED, **SUMMED, "advantage": "remax", "advantage.gamma": 1.0},
    "reinforce++": {
        **SAMPLED,
        **PPO_CLIP,
        "advantage": "reinforce_plus_plus",
        "advantage.gamma": 1.0,
        "normalizer": "per_rollout",
        "filter": [],
    },
    "reinforce++-baseline": {
        **SAMPLED,
        **PPO_CLIP,
        "advantage": "reinforce_plus_plus_baseline",
        "normalizer": "per_rollout",
        "filter": [],
    },
    "opd": {
        **SAMPLED,
        "advantage": "zero",
        "loss": "distill",
        "loss.top_k": 0,
        "loss.top_of": "teacher",
        "normalizer": "per_token",
        "entropy_coef": 0.0,
        "filter": [],
    },
    "sft": {**GIVEN, "loss": "sft", "normalizer": "per_token", "group_size": 1},
    "dpo": {
        **GIVEN,
        "loss": "dpo",
        "loss.beta": 0.1,
        "loss.form": "sigmoid",
        "loss.label_smoothing": 0.0,
        "loss.length_normalized": False,
        "normalizer": "per_rollout",
        "group_size": 2,
    },
}
"""Every choice and every setting of the parts of a recipe, and the settings of a run that recipes touch."""

OF_A_RUN = {"normalizer", *GIVEN, "group_size"}
OF_PARTS = {"advantage", "loss", "value_loss", "filter", "correction"}


@pytest.mark.parametrize("name", NAMES)
def test_each_recipe_is_what_was_vetted(name: str) -> None:
    flat = run_of(name, WITH.get(name)).flat()
    found = {key: x for key, x in flat.items() if key in OF_A_RUN or key.partition(".")[0] in OF_PARTS}
    assert found == VETTED[name]


NEEDS: dict[str, set[Input]] = {
    "kl_cov": {Input.OLD_LOG_PROBS},
    "ppo": {Input.VALUES},
    "remax": {Input.GREEDY_REWARD},
    "opd": {Input.TEACHER_LOG_PROBS},
    "dpo": {Input.REFERENCE_LOG_PROBS},
}


@pytest.mark.parametrize("name", NAMES)
def test_the_inputs_of_each_recipe(name: str) -> None:
    """What is not in the table costs no forward and no generation."""
    assert run_of(name, WITH.get(name)).needs == NEEDS.get(name, set())


def _same_as_rollout(name: str) -> str:
    return (
        f"--correction: found {name!r}, which compares the trainer's old log-probs with the engine's, but "
        "--old-log-probs rollout makes them the same; expected --old-log-probs trainer."
    )


def _group_of_one(name: str) -> str:
    compares = f"advantage {name!r} compares the samples of a prompt"
    return f"--group-size: found 1, but {compares}; expected at least 2."


ONE = {"group_size": "1"}
NO_CRITIC = "--value-loss: found none, but advantage 'gae' reads a critic's values; add --value-loss clipped."
NO_TEACHER = (
    "--teacher-model: found none, but loss 'distill' compares with a teacher; add --teacher-model PATH or "
    "--teacher-url URL."
)
IDLE_CRITIC = (
    "--value-loss: found 'clipped', but nothing reads a critic's values; add --advantage gae or "
    "--value-loss none."
)
TEACHER = WITH["opd"]
UNREAD = "but loss 'distill' reads no advantages"
MISFITS: list[tuple[str, dict[str, Any], str]] = [
    *(
        ("grpo", {"correction": [name], "old_log_probs": "rollout"}, _same_as_rollout(name))
        for name in ("tis", "mis", "icepop", "decoupled", "divergence")
    ),
    (
        "grpo",
        {"correction": ["opsm"]},
        "--correction: found 'opsm', which compares the old with the new log-probs, but they are the same "
        "with --minibatches 1; expected at least 2, or --old-log-probs rollout.",
    ),
    *(
        (name, ONE, _group_of_one("grpo"))
        for name in ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "sapo", "gmpo")
    ),
    *((name, ONE, _group_of_one(name)) for name in ("rloo", "opo", "gpg")),
    ("max_rl", ONE, _group_of_one("max_rl")),
    ("reinforce++-baseline", ONE, _group_of_one("reinforce_plus_plus_baseline")),
    ("ppo", {"value_loss": "none"}, NO_CRITIC),
    ("grpo", {"advantage": "gae"}, NO_CRITIC),
    ("ppo", {"advantage": "grpo"}, IDLE_CRITIC),
    ("grpo", {"value_loss": "clipped"}, IDLE_CRITIC),
    (
        "grpo",
        {"critic_ranks": "1"},
        "--critic-ranks: found 1, but there is no critic; add --algo ppo.",
    ),
    ("grpo", {"critic_lr": "1e-4"}, "--critic-lr: found 1e-4, but there is no critic; add --algo ppo."),
    (
        "grpo",
        {"kl_estimator": "k1"},
        "--kl-estimator: found k1, but nothing reads the reference; add --kl-coef.",
    ),
    (
        "grpo",
        {"teacher_model": "/x"},
        "--teacher-model: found '/x', but nothing reads the teacher; add --algo opd or --distill-coef.",
    ),
    ("opd", {}, NO_TEACHER),
    ("grpo", {"loss": "distill"}, NO_TEACHER),
    (
        "grpo",
        {"loss": "distill", **TEACHER},
        "--advantage: found 'grpo', but loss 'distill' reads no advantages, so that the rewards would do "
        "nothing; choose another loss, or the recipe of this one.",
    ),
    (
        "grpo",
        {"advantage": "zero"},
        "--advantage: found 'zero', whose advantages are all 0, but loss 'ppo_clip' learns by them; add "
        "--distill-coef, or choose another one.",
    ),
    (
        "opd",
        {**TEACHER, "whiten_advantages": True},
        f"--whiten-advantages: found true, {UNREAD}; leave it out.",
    ),
    ("opd", {**TEACHER, "distill_coef": "0.5"}, f"--distill-coef: found 0.5, {UNREAD}; leave it out."),
    (
        "opd",
        {**TEACHER, "kl_coef": "0.1", "kl_place": "reward"},
        f"--kl-place: found reward, {UNREAD}; expected loss.",
    ),
    *(
        (
            name,
            {"loss.dual_clip": "1"},
            "--loss.dual-clip: found '1', expected a number above 1 and of at most 1000, or \"none\".",
        )
        for name in ("grpo", "ppo")
    ),
    (
        "gspo",
        {"loss.clip_low": "0"},
        "--loss.clip-low: found '0', expected a number above 0 and of at most 1.",
    ),
    (
        "grpo",
        {"loss": "sft"},
        "--loss: found 'sft', which trains on given responses, but --algo grpo trains on rollouts; choose "
        "another one.",
    ),
]


@pytest.mark.parametrize(
    ("name", "flags", "sentence"), MISFITS, ids=[f"{name} {flags}" for name, flags, _ in MISFITS]
)
def test_a_misfit(name: str, flags: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_of(name, flags)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        *(("grpo", {"correction": [name]}) for name in ("tis", "mis", "icepop", "decoupled")),
        ("grpo", {"correction": ["opsm"], "minibatches": "2"}),
        ("grpo", {"correction": ["opsm"], "old_log_probs": "rollout"}),
        ("grpo", {**ONE, "advantage.single": "reward"}),
        *((name, ONE) for name in ("reinforce", "remax", "reinforce++", "ppo")),
        ("grpo", {"loss.dual_clip": "1.01"}),
        ("grpo", {**TEACHER, "advantage": "zero", "distill_coef": "1"}),
    ],
    ids=str,
)
def test_what_fits_is_taken(name: str, flags: dict[str, Any]) -> None:
    assert run_of(name, flags).trains_on is TrainsOn.ROLLOUTS


PROMPTS = '{"prompt": "12=", "label": "12"}\n'


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("dpo", None, ("'copy' offers no pairs", "--data FILE with prompt, chosen and rejected")),
        ("dpo", PROMPTS, ("line 1", "'chosen'")),
        ("sft", PROMPTS, ("line 1", "'response'")),
    ],
    ids=["dpo of a task", "dpo of prompts", "sft of prompts"],
)
def test_data_that_does_not_fit(tmp_path: Path, name: str, data: str | None, said: tuple[str, ...]) -> None:
    """Found before anything is started."""
    flags = {"task": "copy"}
    if data is not None:
        file = tmp_path / "rows.jsonl"
        file.write_text(data)
        flags = {"data": str(file)}
    with pytest.raises(UserError) as caught:
        prepare(run_of(name, flags), tmp_path / "run", None)
    assert isinstance(caught.value, ConfigError | DataError)
    assert all(part in str(caught.value) for part in said), str(caught.value)
