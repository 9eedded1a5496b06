"""Precision and recall of rewards for mathematical answers on rlcore-math's table, beside other scorers.

python benchmarks/math_rewards.py
"""

import importlib
import importlib.util
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from math_verify import parse, verify
from trl.rewards import accuracy_reward

from rlcore_math.config import DapoConfig, DeepScalerConfig, MathConfig
from rlcore_math.limits import each
from rlcore_math.reward import Dapo, DeepScaler, Math
from rlcore_testing.rewards import sample

TABLE = Path(__file__).parent.parent / "plugins/rewards/math/tests/answers.toml"
SECONDS = 5
"""Of processor time for one answer."""
BOX, THOUGHTS, LINE = r"So $\boxed{{{}}}$.", r"<think>Hm</think> So $\boxed{{{}}}$.", "So\nAnswer: {}"


Judge = Callable[[Sequence[str], Any], list[bool]]
"""(the answers to one question, its label) → which of them are right."""


def ours(reward: Any) -> Judge:
    """A reward has its own limits of time and memory."""
    return lambda texts, label: [
        score.value == 1 for score in reward.score([sample(text, label) for text in texts])
    ]


def theirs(score: Callable[[str, Any], Any]) -> Judge:
    """A scorer that raises, or takes more than `SECONDS`, says that an answer is wrong."""

    def judge(text: str, label: Any) -> bool:
        try:
            return bool(score(text, label))
        except Exception:
            return False

    return lambda texts, label: [
        bool(said) for said in each(lambda text: judge(text, label), texts, seconds=SECONDS, memory_mib=4096)
    ]


def _parsed(text: str) -> Any:
    return parse(text, parsing_timeout=None)


def verl(name: str) -> Any:
    """A scorer of verl by its file; the package itself asks for what isn't installed."""
    found = importlib.util.find_spec("verl")
    assert found
    assert found.submodule_search_locations
    folder = f"{found.submodule_search_locations[0]}/utils/reward_score"
    if folder not in sys.path:
        sys.path.append(folder)
    if name != "math_verify":  # which is the name of another package
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location("verl_math_verify", f"{folder}/math_verify.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def scorers() -> dict[str, tuple[str, Judge]]:
    """Each with the place in which it looks for an answer."""
    dapo, hendrycks, checked = map(verl, ("math_dapo", "math_reward", "math_verify"))
    return {
        "rlcore math": (BOX, ours(Math(MathConfig()))),
        "rlcore deepscaler": (THOUGHTS, ours(DeepScaler(DeepScalerConfig()))),
        "rlcore dapo": (LINE, ours(Dapo(DapoConfig()))),
        "math-verify": (
            BOX,
            theirs(lambda text, label: verify(_parsed(f"${label}$"), _parsed(text), timeout_seconds=None)),
        ),
        "TRL accuracy_reward": (
            BOX,
            theirs(lambda text, label: accuracy_reward([[{"content": text}]], [f"${label}$"])[0] == 1),
        ),
        "verl math_verify": (
            BOX,
            theirs(lambda text, label: checked._verify_in_subprocess(rf"\boxed{{{label}}}", text) == 1),
        ),
        "verl math_reward": (BOX, theirs(lambda text, label: hendrycks.compute_score(text, str(label)) == 1)),
        "verl math_dapo": (LINE, theirs(lambda text, label: dapo.compute_score(text, str(label))["acc"])),
    }


def measured(name: str, place: str, judge: Judge) -> str:
    """One line of the table."""
    counts: Counter[tuple[bool, bool]] = Counter()
    for row in tomllib.loads(TABLE.read_text())["expression"]:
        for want in (True, False):
            texts = [place.format(text) for text in row["right" if want else "wrong"]]
            counts.update((want, said) for said in judge(texts, row["label"]))
    hits, false, missed = counts[True, True], counts[False, True], counts[True, False]
    precision, recall = hits / (hits + false), hits / (hits + missed)
    return f"{name:<20}  {precision:>9.3f}  {recall:>6.3f}  {false:>15}  {missed:>6}"


if __name__ == "__main__":
    print(f"{'scorer':<20}  precision  recall  false positives  missed")
    for name, (place, score) in scorers().items():
        print(measured(name, place, score), flush=True)
