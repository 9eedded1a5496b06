"""A policy, a reference or a teacher: a model of transformers, and for a policy its optimizer."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rlcore import (
    CheckpointError,
    ModelHook,
    ModelSpec,
    ModelView,
    OptimizerSettings,
    PolicyLoss,
    SleepLevel,
    StepResult,
    TokenOutputs,
    TrainBatch,
    torch_dtype,
)
from rlcore_toolkit import ModelOffload, learning_rate
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from rlcore_my_plugin.batches import entropy_of, micro_batches, of_targets

MODEL, MOMENTS, STATE, RANDOM = "model.safetensors", "moments.safetensors", "state.json", "random.safetensors"


class StagedModel:
    """Tensors and numbers of a model, as they were."""

    def __init__(self, files: Mapping[str, Mapping[str, Tensor]], steps: int) -> None:
        self._files, self._steps = files, steps

    def write(self, folder: Path) -> None:
        """Into `folder`, while the model trains on."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, tensors in self._files.items():
            save_file(dict(tensors), folder / name)
        (folder / STATE).write_text(json.dumps({"steps": self._steps}))


class Model:
    """A policy, a reference or a teacher."""

    def __init__(
        self,
        spec: ModelSpec,
        settings: OptimizerSettings | None = None,
        hooks: Sequence[ModelHook] = (),
        *,
        foreach: bool = True,
    ) -> None:
        """Without `settings` it is frozen."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        loaded: Any = AutoModelForCausalLM  # transformers leaves much of it untyped
        model: Any = loaded.from_pretrained(spec.path, dtype=torch_dtype(spec.dtype))
        self._model = model.to(device).eval().requires_grad_(settings is not None)
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.data = tensor.data.clone()  # a file that is mapped cannot leave the memory
        self._settings = settings
        self._steps = 0
        self.lr_scale = 1.0
        parameters = dict(model.named_parameters())
        view = ModelView(modules=[model], parameters=parameters, names=frozenset(parameters))
        self.view = view if hooks else None
        for hook in hooks:
            hook.built(view)
        self._optimizer = None if settings is None else _adamw(model, settings, foreach)
        self._away = ModelOffload()

    def forward(
        self,
        batch: TrainBatch,
        *,
        temperature: float,
        tokens_per_rank: int,
        entropy: bool = False,
        top: int = 0,
        chosen: str | None = None,
    ) -> dict[str, Tensor]:
        """Columns of the response tokens, in the batch's order."""
        outputs: dict[str, Tensor] = {}
        total = int(batch.response_lengths.sum())
        with torch.no_grad():
            for rows, places in micro_batches(batch, tokens_per_rank):
                part = batch.select(rows)
                log_probs = self._log_probs(part, temperature)
                columns = {"log_probs": of_targets(log_probs, part)}
                columns |= {"entropy": entropy_of(log_probs)} if entropy else {}
                if top:
                    best = log_probs.topk(top)
                    columns |= {"top_ids": best.indices, "top_log_probs": best.values}
                if chosen:
                    ids = part.per_token[chosen].to(log_probs.device)
                    columns["top_log_probs"] = log_probs.gather(1, ids)
                for name, column in columns.items():
                    whole = outputs.setdefault(
                        name, torch.zeros(total, *column.shape[1:], dtype=column.dtype)
                    )
                    whole[places] = column.cpu()
        return outputs or {"log_probs": torch.zeros(0)}

    def train(
        self,
        batch: TrainBatch,
        loss: PolicyLoss,
        *,
        temperature: float,
        tokens_per_rank: int,
        entropy: bool = False,
        entropy_grad: bool = False,
        chosen: str | None = None,
    ) -> StepResult:
        """One optimizer step on the whole batch; the loss is a sum, so the split does not matter."""
        assert self._optimizer is not None, "a frozen model is not trained"
        self._optimizer.zero_grad(set_to_none=False)
        total, metrics = 0.0, dict[str, float]()
        for rows, _ in micro_batches(batch, tokens_per_rank):
            part = batch.select(rows)
            if not int(part.response_lengths.sum()):
                continue
            log_probs = self._log_probs(part, temperature)
            with torch.set_grad_enabled(entropy_grad):
                spread = entropy_of(log_probs) if entropy else None
            ids = part.per_token[chosen].to(log_probs.device) if chosen else None
            outputs = TokenOutputs(
                log_probs=of_targets(log_probs, part),
                entropy=spread,
                chosen=None if ids is None else log_probs.gather(1, ids),
            )
            result = loss(outputs, part.to(log_probs.device))
            result.total.backward()
            total += float(result.total.detach())
            for name, value in result.metrics.items():
                metrics[name] = metrics.get(name, 0.0) + float(value)
        return self._step(total, metrics)

    def _step(self, loss: float, metrics: dict[str, float]) -> StepResult:
        """A step that is not finite is not taken."""
        assert self._optimizer is not None
        assert self._settings is not None
        settings, lr = self._settings, learning_rate(self._settings, self._steps) * self.lr_scale
        gradients = [p.grad for p in self._model.parameters() if p.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients)) if gradients else 0.0
        finite = math.isfinite(loss) and math.isfinite(norm)
        if finite:
            if settings.clip_grad:
                scale = min(1.0, settings.clip_grad / (norm + 1e-6))
                for gradient in gradients:
                    gradient.mul_(scale)
            for group in self._optimizer.param_groups:
                group["lr"] = lr
            self._optimizer.step()
            self._steps += 1
        return StepResult(loss=loss, metrics=metrics, grad_norm=norm, lr=lr, finite=finite)

    def hf_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The weights by the names of the model's directory, the same order each time."""
        return ((name, tensor.detach()) for name, tensor in self._model.named_parameters())

    def copy_weights(self, policy: Model) -> None:
        """A reference takes over the policy."""
        with torch.no_grad():
            for mine, theirs in zip(self._model.parameters(), policy._model.parameters(), strict=True):
                mine.copy_(theirs)

    def sleep(self, what: SleepLevel) -> int:
        """Leave the device, wholly or but for the weights, until `wake`."""
        weights = [*self._model.parameters(), *self._model.buffers()]
        if self._optimizer is None:
            return self._away.sleep(what, weights=weights)
        gradients = [p.grad for p in self._model.parameters() if p.grad is not None]
        states = [moment for _, moment in self._moments()]
        return self._away.sleep(what, weights=weights, states=states, gradients=gradients)

    def wake(self) -> None:
        """Come back."""
        self._away.wake()

    def stage(self) -> StagedModel:
        """A copy of all that `load` needs."""
        files = {MODEL: {name: _copy(tensor) for name, tensor in self.hf_tensors()}}
        if self._optimizer is not None:
            files[MOMENTS] = {key: _copy(tensor) for key, tensor in self._moments()}
            files[RANDOM] = {"torch": torch.get_rng_state()}
        return StagedModel(files, self._steps)

    def load(self, folder: Path) -> None:
        """Go on where `stage` was called. Raises `CheckpointError`."""
        try:
            weights = load_file(folder / MODEL)
            _fill(dict(self._model.named_parameters()), weights)
            if self._optimizer is None:
                return
            moments = load_file(folder / MOMENTS)
            self._steps = int(json.loads((folder / STATE).read_text())["steps"])
            for name, parameter in self._model.named_parameters():
                kinds = [key for key in moments if key.endswith(f"/{name}")]
                if kinds:
                    self._optimizer.state[parameter] = {
                        key.partition("/")[0]: moments[key].to(
                            parameter.device if moments[key].dim() else "cpu"
                        )
                        for key in kinds
                    }
            torch.set_rng_state(load_file(folder / RANDOM)["torch"])
        except CheckpointError:
            raise
        except Exception as error:  # safetensors has errors of its own kind
            raise CheckpointError(f"{folder} cannot be read: {error}.") from error

    def _moments(self) -> Iterator[tuple[str, Tensor]]:
        assert self._optimizer is not None
        for name, parameter in self._model.named_parameters():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                yield f"{key}/{name}", value

    def _log_probs(self, part: TrainBatch, temperature: float) -> Tensor:
        """fp32 [R, V]: of the distribution behind each response token."""
        device, lengths = self._model.device, part.lengths[:, None]
        width = int(lengths.max()) if len(part) else 0
        places = torch.arange(width)
        ids, mask = torch.zeros(len(part), width, dtype=torch.int64), places < lengths
        ids[mask] = part.tokens
        out = self._model(input_ids=ids.to(device), attention_mask=mask.long().to(device), use_cache=False)
        # A token's logits stand one place before it.
        behind = (places >= lengths - part.response_lengths[:, None] - 1) & (places < lengths - 1)
        return torch.log_softmax(out.logits[behind.to(device)].float() / temperature, dim=-1)


def _adamw(model: Any, settings: OptimizerSettings, foreach: bool) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        model.parameters(),
        lr=settings.lr,
        betas=(settings.adam_beta1, settings.adam_beta2),
        eps=settings.adam_eps,
        weight_decay=settings.weight_decay,
        foreach=foreach,
    )


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone()


def _fill(own: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    if own.keys() != saved.keys():
        raise CheckpointError("The checkpoint is of another model.")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(saved[name])
