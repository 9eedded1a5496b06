"""The suite of trainers names what a trainer lacks: that of `rlcore new trainer`, with one fault each.

Without a fault it passes: its own tests say so (tests/packaging/test_release.py).
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from broken_parts import Fault, break_package, fails

from rlcore.api.part import Part
from rlcore_new.package import write_package
from rlcore_testing.conformance import Subject
from rlcore_testing.trainers import TrainerConformance

LOG_PROBS = "log probs are those of transformers"
RESUMED = "what follows a load is the same to the last bit"
NOT_FINITE = "a step that is not finite is not taken"
PUBLISHED = "published weights are the policy by the names of its directory"

FAULTS = [
    Fault(
        name="entropy_in_bits",
        file="batches.py",
        old="return -(log_probs.exp() * log_probs).sum(-1)",
        new="return -(log_probs.exp() * log_probs).sum(-1) / 0.6931",
        missing=LOG_PROBS,
        reason="'entropy': ",
    ),
    Fault(
        name="shifted_by_one",
        file="model.py",
        old="(places >= lengths - part.response_lengths[:, None] - 1) & (places < lengths - 1)",
        new="(places >= lengths - part.response_lengths[:, None]) & (places < lengths)",
        missing=LOG_PROBS,
        reason="'log_probs': ",
    ),
    Fault(
        name="saves_nothing",
        file="model.py",
        old="from safetensors.torch import load_file, save_file\n",
        new="""KEPT = {}

def save_file(tensors, path):
    KEPT[path] = tensors

def load_file(path):
    return KEPT[path]

""",
        missing=RESUMED,
        reason="cannot be read",
    ),
    Fault(
        name="bad_moments",
        file="model.py",
        old="        if finite:\n",
        new="""        if not finite:
            kept = [parameter.detach().clone() for parameter in self._model.parameters()]
            self._optimizer.step()
            with torch.no_grad():
                for parameter, value in zip(self._model.parameters(), kept):
                    parameter.copy_(value)
        if finite:
""",
        missing=NOT_FINITE,
        reason="differs",
    ),
    Fault(
        name="turning_order",
        file="model.py",
        old="for name, tensor in self._model.named_parameters())",
        new="for name, tensor in [*self._model.named_parameters()][:: -1 if self._steps % 2 else 1])",
        missing=PUBLISHED,
        reason="the order is the same at every publication",
    ),
    Fault(
        name="same_dice",
        file="model.py",
        old='torch.set_rng_state(load_file(folder / RANDOM)["torch"])',
        new="load_file(folder / RANDOM)",
        missing=RESUMED,
        reason="random numbers differs",
    ),
    Fault(
        name="looks_at_the_loss",
        file="model.py",
        old="finite = math.isfinite(loss) and math.isfinite(norm)",
        new="finite = math.isfinite(loss)",
        missing=NOT_FINITE,
        reason="of a gradient, that is not finite",
    ),
    Fault(
        name="counts_every_step",
        file="model.py",
        old="            self._optimizer.step()\n            self._steps += 1\n",
        new="            self._optimizer.step()\n        self._steps += 1\n",
        missing=NOT_FINITE,
        reason="it counts for the schedule",
    ),
    Fault(
        name="own_errors",
        file="model.py",
        old='raise CheckpointError(f"{folder} cannot be read: {error}.") from error',
        new="raise",
        missing="what cannot be loaded is refused",
        reason="FileNotFoundError",
    ),
    Fault(
        name="first_weights",
        file="trainer.py",
        old="tensors = load_file(source.folder / MODEL)",
        new="tensors = load_file(Path(source.spec.path) / MODEL)",
        missing="a checkpoint becomes a directory that transformers loads",
        reason="its log-probs are not the policy's",
    ),
    Fault(
        name="fixed_rate",
        file="model.py",
        old=" * self.lr_scale",
        new="",
        missing="the learning rate is scaled",
        reason="'half': ",
    ),
    Fault(
        name="shows_nothing",
        file="model.py",
        old="            hook.built(view)\n",
        new="            pass\n",
        missing="what a hook freezes stays",
        reason="its hooks are shown no parameters",
    ),
    Fault(
        name="trains_all",
        file="model.py",
        old="            hook.built(view)\n",
        new="            hook.built(view)\n        model.requires_grad_(True)\n",
        missing="what a hook freezes stays",
        reason="what is frozen was trained",
    ),
    Fault(
        name="detached_entropy",
        file="model.py",
        old="torch.set_grad_enabled(entropy_grad)",
        new="torch.set_grad_enabled(False)",
        missing="the gradient of a linear loss is that of autograd",
        reason="'norm': ",
    ),
    Fault(
        name="mean_of_parts",
        file="model.py",
        old="result.total.backward()",
        new="(result.total / len(rows)).backward()",
        missing="a step does not depend on how its batch is split",
        reason="another loss or gradient norm",
    ),
    Fault(
        name="late_reference",
        file="model.py",
        old="mine.copy_(theirs)",
        new="mine.lerp_(theirs, 0.5)",
        missing="a reference stays until it takes over the policy",
        reason="it is not the policy after `copy_weights`",
    ),
    Fault(
        name="light_sleeper",
        file="model.py",
        old="self._optimizer_away.move(moment for _, moment in self._moments())",
        new="self._optimizer_away.move(())",
        missing="a sleep frees the device and changes no bit",
        reason="bytes are freed",
    ),
]


@pytest.mark.grid
@pytest.mark.parametrize(
    "fault",
    FAULTS,
    ids=lambda fault: fault.name,
)
def test_a_trainer_with_a_fault(fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, made = fault.name, fault.name.title().replace("_", "")
    write_package("trainer", name, "MIT", tmp_path / name)
    break_package(tmp_path / name / "src" / f"rlcore_{name}", fault)
    monkeypatch.syspath_prepend(tmp_path / name / "src")
    config = getattr(importlib.import_module(f"rlcore_{name}.config"), f"{made}Config")
    part = Part(name=name, factory=f"rlcore_{name}.trainer:{made}", config=config())
    found = fails(TrainerConformance.of(Subject(record=None, part=part)), fault.missing)
    assert fault.reason in found[fault.missing]
