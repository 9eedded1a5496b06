"""One rank of a model: its weights, its sleep, its checkpoint. The roles derive from it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rlcore import (
    AdapterSpec,
    LossResult,
    ModelView,
    RoleSpec,
    SleepLevel,
    StepResult,
    TrainBatch,
    torch_dtype,
)
from rlcore_fsdp.build import divide, empty_model, fill, materialize, plain_state
from rlcore_fsdp.checkpoint import SavedModel, StagedModel
from rlcore_fsdp.config import FsdpConfig
from rlcore_fsdp.net import Net
from rlcore_fsdp.optimizer import Optimizer
from rlcore_fsdp.packs import Pack
from rlcore_fsdp.quantized import quantize
from rlcore_fsdp.shards import local, own_rows, whole
from rlcore_toolkit import (
    HostWeights,
    ModelOffload,
    SafetensorsFiles,
    current_device,
    in_order,
    learning_rate,
    loss_sums,
    rank_bins,
    rank_most,
    rank_sums,
    use_kernels,
    write_adapter,
)

if TYPE_CHECKING:
    from rlcore_fsdp.lora import Adapter

Score = Callable[[Mapping[str, Tensor], TrainBatch], LossResult]
"""From the outputs of a micro-batch and its samples to their loss."""

Reader = Callable[[Pack, Tensor], Mapping[str, Tensor]]
"""From a micro-batch, and the hidden states that predict its response tokens, to outputs of these tokens."""


class Model:
    """A model on one rank. The methods are collective, but for those that say otherwise."""

    def __init__(
        self,
        spec: RoleSpec,
        config: FsdpConfig,
        writers: dist.ProcessGroup | None,
        further: Mapping[str, AdapterSpec] = MappingProxyType({}),
    ) -> None:
        """`writers`: the ranks, by a group that writes checkpoints beside training. `further`: the adapters
        of other policies, by role (`Model.further`).
        """
        self.settings, self._writers, self._path = spec.optimizer, writers, Path(spec.model.path)
        self._is_guest = False
        model = empty_model(spec.model.path, spec.model.dtype)
        self._prepare(model)
        self.dtypes = {name: tensor.dtype for name, tensor in model.state_dict().items()}
        self.adapter, self._further = self._adapted(model, spec, further)
        adapters = [one for one in (self.adapter, *self._further.values()) if one]
        self.quantized = quantize(model, config.quantize_base) if self.adapter else {}
        kernels = use_kernels(model, torch_dtype(spec.model.dtype))
        divide(
            model,
            torch_dtype(spec.model.dtype),
            current_device(),
            trains=self.settings is not None,
            adapter=[one for adapter in adapters for one in adapter.tensors.values()] if adapters else None,
        )
        recompute = config.recompute and spec.optimizer is not None
        draws = any(adapter.spec.dropout > 0 for adapter in adapters)
        self.net = Net(model, recompute=recompute, is_exact=spec.model.dtype == "fp32", draws=draws)
        materialize(model, current_device())
        self._before_weights(model)
        state = plain_state(model)
        self.names = fill(model, spec.model.path, state, self.quantized)
        for adapter in adapters:
            adapter.fill()
        self.longest: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        with ExitStack() as calls:
            for adapter in adapters:
                calls.enter_context(adapter.called())
            self.packing = self.net.choose_packs()
        if not dist.get_rank():
            print(f"{spec.model.path}: {self.packing}; layers by kernels: {kernels}", flush=True)
        tied = set(getattr(model, "all_tied_weights_keys", {}))
        self.state = {name: one for name, one in plain_state(model).items() if name not in tied}
        self._writing = self.names.writing(self.state.keys())
        parameters = dict(model.named_parameters())
        view = ModelView(modules=[model], parameters=parameters, names=frozenset(parameters))
        self.view = view if spec.hooks else None
        for hook in spec.hooks:
            hook.built(view)
        self._away = ModelOffload()
        self._optimizers: list[Optimizer] = []
        """That of this model, and those of policies that share it."""
        self._begin(parameters, config)

    def _begin(self, parameters: Mapping[str, nn.Parameter], config: FsdpConfig) -> None:
        """What is trained, of `parameters` or of the adapter, with an optimizer that has taken no step."""
        self.steps, self.lr_scale, adapter = 0, 1.0, self.adapter
        self.first_adapter = HostWeights(adapter.held()) if adapter and adapter.spec.source else None
        self.kept: Mapping[str, Tensor] = adapter.tensors if adapter else self.state
        named = adapter.tensors if adapter else parameters
        trained = {name: one for name, one in named.items() if one.requires_grad}
        self.optimizer: Optimizer | None = None
        if self.settings is not None:
            self.optimizer = Optimizer(trained, self.settings, on_host=config.optimizer_on_host)
            self._optimizers.append(self.optimizer)

    def further(self, role: str, spec: RoleSpec, config: FsdpConfig) -> Self:
        """Another policy over this model: its adapter and its optimizer are its own, all else is shared."""
        policy = copy.copy(self)
        policy.adapter, policy.settings, policy.view = self._further[role], spec.optimizer, None
        policy._is_guest = True
        policy._begin({}, config)
        return policy

    def hf_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight by its name in the directory, whole, one after another; at last what is carried.

        Of an adapter that is published alone, its tensors.
        """
        if self.adapter is not None and self.adapter.spec.travels:
            yield from self.adapter.published(self._whole)
            return
        yield from self._writing.tensors(self._gathered)
        files = SafetensorsFiles.of(self._path)
        for name in self.names.carried:
            yield name, files.read(name)

    def copy_weights(self, policy: Model) -> None:
        """Take over the weights of `policy`. No collective."""
        with torch.no_grad():
            for name, tensor in self.state.items():
                adapted = policy._gathered(name)[own_rows(tensor)] if policy.adapter else None
                local(tensor).copy_(local(policy.state[name]) if adapted is None else adapted)

    def sleep(self, what: SleepLevel) -> int:
        """Give up memory as `rlcore.Sleeper` says. No collective.

        A publication takes weights back one by one, so that engines have the memory of the others.
        """
        if self._is_guest:  # the model that it shares sleeps for both
            return 0
        what = "all" if what == "publish" else what
        model, here = self.net.model, current_device().type
        weights = [local(tensor) for tensor in (*model.parameters(), *model.buffers())]
        moments = [moment for one in self._optimizers for moment in one.moments().values()]
        gradients = [gradient for one in self._optimizers for gradient in one.gradients()]
        states = (moment for moment in moments if moment.device.type == here)
        return self._away.sleep(what, weights=weights, states=states, gradients=gradients)

    def wake(self) -> None:
        """Undo `sleep`. No collective."""
        if not self._is_guest:
            self._away.wake()

    def stage(self) -> StagedModel:
        """A copy of what `load` needs, in host memory."""
        is_first = not dist.get_rank()  # it writes what every rank has
        own = {key: one for key, (one, of) in self._saved().items() if is_first or isinstance(of, DTensor)}
        return StagedModel(own, self.steps, self._writers, self._files())

    def load(self, folder: Path) -> None:
        """Go on where `stage` was called. CheckpointError."""
        saved = SavedModel(folder)
        saved.check({name: tuple(one.shape) for name, one in self.kept.items()}, self.optimizer is not None)
        with torch.no_grad():
            for key, (tensor, of) in self._saved().items():
                tensor.copy_(saved.read(key, own_rows(of)))
        if self.optimizer is not None:
            self.optimizer.went(saved.steps)
            saved.restore_random()
        self.steps = saved.steps

    def _saved(self) -> dict[str, tuple[Tensor, Tensor]]:
        """KIND/NAME → what this rank holds of it, and the tensor of the model that it is about."""
        held = {} if self.optimizer is None else self.optimizer.moments()
        held |= {f"weight/{name}": local(one) for name, one in self.kept.items()}
        return {key: (one, self.kept[key.partition("/")[2]]) for key, one in held.items()}

    def _prepare(self, model: Any) -> None:
        """Make the model what the role needs, before it has memory."""

    def _before_weights(self, model: Any) -> None:
        """The weights that no directory has."""

    def _gathered(self, name: str) -> Tensor:
        if (layer := self.quantized.get(name)) is None:
            weight = self._whole(self.state[name], self.dtypes[name])
        else:
            with self._away.lent(layer.buffers()):
                weight = layer.weight
        return weight if self.adapter is None else self.adapter.merged(name, weight, self._whole)

    def _whole(self, tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """All of `tensor`, which may be asleep. Collective where it is sharded."""
        with self._away.lent([local(tensor)]) as is_asleep:
            found = whole(tensor.detach().to(dtype or tensor.dtype))
            is_shared = found.untyped_storage()._cdata == local(tensor).untyped_storage()._cdata
            return found.clone() if is_asleep and is_shared else found

    def _adapted(
        self, model: Any, spec: RoleSpec, further: Mapping[str, AdapterSpec]
    ) -> tuple[Adapter | None, Mapping[str, Adapter]]:
        """The adapter of this model, and those of other policies by role."""
        if spec.overlay is None:
            return None, {}
        assert isinstance(spec.overlay, AdapterSpec), "of `overlay`"
        from rlcore_fsdp.lora import FIRST, Adapter, modules_in_memory  # PEFT takes seconds

        path, specs = spec.model.path, {FIRST: spec.overlay, **further}
        # All places first: PEFT changes the names in memory.
        places = {name: modules_in_memory(model, path, one) for name, one in specs.items()}
        # PEFT joins names with dots, and parameters of a module must not be told apart by one
        made = {
            name: Adapter(model, places[name], one, name.replace(".", "_")) for name, one in specs.items()
        }
        return made.pop(FIRST), made

    def _files(self) -> Callable[[Path], None] | None:
        """What writes the adapter's files. Collective."""
        if self.adapter is None:
            return None
        tensors = {name: whole(one).cpu().clone() for name, one in self.adapter.tensors.items()}
        return partial(write_adapter, spec=self.adapter.spec, base=self._path, tensors=tensors)

    def _columns(self, batch: TrainBatch, tokens_per_rank: int, read: Reader) -> dict[str, Tensor]:
        """What `read` says of the response tokens, in the batch's order, on the CPU."""
        if self.adapter is not None:
            self.adapter.select()
        bins: list[Sequence[int]] = []
        found: list[Mapping[str, Tensor]] = []
        with torch.no_grad():
            for samples in rank_bins(batch, tokens_per_rank, rank_most, self.longest):
                part = self.net.pack(batch, samples)
                bins.append(part.samples)
                outputs = self.net(part, partial(read, part))
                found.append({name: one[: part.targets.numel()].cpu() for name, one in outputs.items()})
        self.net.rest()
        return {name: in_order(torch.cat([one[name] for one in found]), batch, bins) for name in found[0]}

    def _fit(self, batch: TrainBatch, tokens_per_rank: int, read: Reader, score: Score) -> StepResult:
        """One optimizer step, under the rules of `Policy.train`."""
        assert self.optimizer is not None, "a frozen model is not trained"
        if self.adapter is not None:
            self.adapter.select(drops_out=True)
        for one in self._optimizers:  # FSDP makes the gradients of all adapters in one buffer
            one.forget_gradients()
        bins = rank_bins(batch, tokens_per_rank, rank_most, self.longest)
        sums = []
        for number, samples in enumerate(bins, 1):
            self.net.begin_micro_batch(is_last=number == len(bins))
            sums.append(self._backward(batch, samples, read, score))
        return self._step(rank_sums(sums, current_device()))

    def _backward(
        self, batch: TrainBatch, samples: list[int], read: Reader, score: Score
    ) -> dict[str, Tensor]:
        """The gradients of a micro-batch; its sums."""
        part = self.net.pack(batch, samples)
        outputs = self.net(part, partial(read, part))
        count, output = part.targets.numel(), next(iter(outputs.values()))
        total, sums = loss_sums(output[:count], lambda: score(outputs, part.part))
        total.backward()
        return sums

    def _step(self, metrics: dict[str, float]) -> StepResult:
        assert self.optimizer is not None
        assert self.settings is not None
        loss, lr = metrics.pop("", 0.0), learning_rate(self.settings, self.steps) * self.lr_scale
        norm = self.optimizer.norm()
        finite = math.isfinite(loss) and math.isfinite(norm)
        if finite:
            self.optimizer.step(lr, norm)
            self.steps += 1
        return StepResult(loss=loss, metrics=metrics, grad_norm=norm, lr=lr, finite=finite)
