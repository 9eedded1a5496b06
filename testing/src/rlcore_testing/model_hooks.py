"""What every model hook must fulfill, as a suite to subclass.

    class TestMyHook(ModelHookConformance):
        part = Part(name="probe", factory="acme.probe:Probe", config=ProbeConfig())

The model is a decoder of two small layers, whose parameters have the names of Hugging Face. It stands for a
rank that has all of it, and for two pipeline stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rlcore.api.model_hook import ModelHook, ModelView
from rlcore_testing.conformance import Conformance

LAYERS = 2
STEPS = 3
WIDTH = 4


class Layer(nn.Module):
    """A layer of the small model."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attn = nn.ModuleDict({name: _linear() for name in ("q_proj", "k_proj", "v_proj", "o_proj")})
        self.mlp = nn.ModuleDict({name: _linear() for name in ("gate_proj", "up_proj", "down_proj")})
        self.input_layernorm = nn.LayerNorm(WIDTH, bias=False)
        self.post_attention_layernorm = nn.LayerNorm(WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Every parameter counts."""
        y = self.input_layernorm(x)
        x = x + self.self_attn["o_proj"](
            sum(self.self_attn[name](y) for name in ("q_proj", "k_proj", "v_proj"))
        )
        y = self.post_attention_layernorm(x)
        out: Tensor = x + self.mlp["down_proj"](self.mlp["gate_proj"](y) * self.mlp["up_proj"](y))
        return out


class Decoder(nn.Module):
    """The small model."""

    def __init__(self) -> None:
        super().__init__()
        inner = nn.Module()
        inner.embed_tokens = nn.Embedding(8, WIDTH)
        inner.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        inner.norm = nn.LayerNorm(WIDTH, bias=False)
        self.model = inner
        self.lm_head = nn.Linear(WIDTH, 8, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits."""
        inner: Any = self.model
        x = inner.embed_tokens(ids)
        for layer in inner.layers:
            x = layer(x)
        logits: Tensor = self.lm_head(inner.norm(x))
        return logits


class ModelHookConformance(Conformance):
    """Subclass it as `Test…` and give `hook` or `part`."""

    def hook(self) -> ModelHook:
        """A new instance."""
        made: ModelHook = self.part.build()
        return made

    def model(self) -> nn.Module:
        """The policy: the same weights each time."""
        torch.manual_seed(0)
        return Decoder()

    # --- the properties --------------------------------------------------------------------------------

    def test_something_is_left_to_train(self) -> None:
        model, _ = self._built()
        assert any(parameter.requires_grad for parameter in model.parameters()), "it freezes every parameter"

    def test_the_weights_stay_those_of_the_directory(self) -> None:
        """By name, shape, type and value: an engine holds the same ones."""
        model, _ = self._built()
        before, after = dict(self.model().named_parameters()), dict(model.named_parameters())
        assert after.keys() == before.keys(), f"other names: {sorted(before.keys() ^ after.keys())}"
        for name, parameter in after.items():
            assert parameter.dtype == before[name].dtype, (
                f"{name} is {parameter.dtype}, was {before[name].dtype}"
            )
            assert torch.equal(parameter, before[name]), f"it changed the values of {name}"

    def test_the_policy_computes_as_before(self) -> None:
        """The old log-probs, and those of the engine, are compared with what it computes."""
        model, _ = self._built()
        ids = torch.arange(5)
        with torch.no_grad():
            logits, expected = model(ids), self.model()(ids)
        assert torch.equal(logits, expected), "the policy has other logits"

    def test_it_does_the_same_again(self) -> None:
        """A resumed run builds it anew."""
        first, again = (_trained(self._built()[0]) for _ in range(2))
        assert again == first, f"built anew, it trains others: {sorted(again ^ first)}"

    def test_pipeline_stages_agree_with_the_whole_model(self) -> None:
        """A rank has only some of the parameters, and the names of all."""
        whole = _trained(self._built()[0])
        for last in (False, True):
            model = self.model()
            mine = {name for name, _ in model.named_parameters() if _is_of_stage(name, last)}
            with alone():
                self.hook().built(_view(model, mine.__contains__))
            trained = _trained(model) & mine
            assert trained == whole & mine, f"on a stage, otherwise: {sorted(trained ^ (whole & mine))}"

    def test_steps_leave_the_weights_alone(self) -> None:
        """It is called before the optimizer, with gradients and without."""
        model, hook = self._built()
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        with alone():
            for step in range(1, STEPS + 1):
                if step > 1:
                    model.zero_grad()
                    model(torch.arange(5)).square().sum().backward()
                hook.before_step(step, _view(model))
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, before[name]), f"it changed the values of {name}"
            assert parameter.grad is None or parameter.grad.isfinite().all(), (
                f"the gradient of {name} is not finite"
            )

    def _built(self) -> tuple[nn.Module, ModelHook]:
        """A model that it has seen, and the hook."""
        model, hook = self.model(), self.hook()
        with alone():
            hook.built(_view(model))
        return model, hook


@contextmanager
def alone() -> Iterator[None]:
    """A process group of this process, so that a hook may communicate."""
    if dist.is_initialized():
        yield
        return
    store: Any = getattr(dist, "HashStore")()  # noqa: B009 - torch's types do not export it
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _linear() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH, bias=False)


def _trained(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def _is_of_stage(name: str, last: bool) -> bool:
    """The first stage has the embedding and the first layer, the last one the rest."""
    return (name.startswith(("model.embed_tokens.", "model.layers.0."))) != last


def _view(model: nn.Module, mine: Callable[[str], bool] = lambda name: True) -> ModelView:
    named = dict(model.named_parameters())
    parameters = {name: parameter for name, parameter in named.items() if mine(name)}
    return ModelView(modules=[model], parameters=parameters, names=frozenset(named))
