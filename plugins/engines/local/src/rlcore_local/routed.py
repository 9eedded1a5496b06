"""Which experts a model of transformers sends its tokens to, layer by layer."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

Routes = NDArray[np.int32]
"""[tokens, layers of the model, K]; zeros in layers without experts."""


class RoutedExperts:
    """Listens to every module `experts`, which transformers calls with (hidden, experts [T, K], weights).

    `is_wanted`: whether anything is kept; `take` empties what is.
    """

    def __init__(self, model: Any, layers: int) -> None:
        self.is_wanted = False
        self._layers = layers
        self._forwards: list[dict[int, Tensor]] = []
        self._heard = 0
        for number, layer in enumerate(model.model.layers):
            for name, module in layer.named_modules():
                if name.rpartition(".")[2] == "experts":
                    module.register_forward_pre_hook(partial(self._keep, number))
                    self._heard += 1

    @classmethod
    def of(cls, model: Any) -> RoutedExperts | None:
        """Listens to a decoder with experts; None for any other model."""
        config = model.config.get_text_config()
        if not getattr(config, "num_experts_per_tok", None):
            return None
        routed = cls(model, config.num_hidden_layers)
        return routed if routed._heard else None

    def take(self) -> list[Routes]:
        """The experts of each forward since the last call, its tokens in order."""
        routes = [self._joined(forward) for forward in self._forwards]
        self._forwards = []
        return routes

    def _joined(self, by_layer: dict[int, Tensor]) -> Routes:
        some = next(iter(by_layer.values()))
        routes = np.zeros((len(some), self._layers, some.shape[1]), dtype=np.int32)
        for number, chosen in by_layer.items():
            routes[:, number] = chosen.cpu().numpy()
        return routes

    def _keep(self, layer: int, module: nn.Module, args: tuple[Tensor, Tensor, Tensor]) -> None:
        if not self.is_wanted:
            return
        if not self._forwards or layer <= max(self._forwards[-1]):
            self._forwards.append({})  # a forward goes from the first layer to the last
        self._forwards[-1][layer] = args[1]
