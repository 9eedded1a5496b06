"""What the layers of a model of transformers choose for each token: experts, and keys of sparse attention."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlcore import INDEXER_TOPK, ROUTED_EXPERTS
from rlcore_toolkit import packed_keys


class ChosenExperts:
    """Those of one forward: int32 [tokens, layers of the model, K], zeros in layers without experts."""

    def __init__(self, by_layer: dict[int, Tensor], layers: int) -> None:
        some = next(iter(by_layer.values()))
        self._experts: NDArray[Any] = np.zeros((len(some), layers, some.shape[1]), dtype="<i4")
        for number, chosen in by_layer.items():
            self._experts[:, number] = chosen.cpu().numpy()

    def of_prompt(self) -> list[bytes]:
        """For each token, where all are of one prompt."""
        return [token.tobytes() for token in self._experts]

    def of_row(self, row: int, position: int) -> bytes:
        """For the token of a row, where each is of another one."""
        return bytes(self._experts[row].tobytes())


class ChosenKeys:
    """Those of one forward: how far each stands before its query, int64 [tokens, indexers, K]."""

    def __init__(self, by_layer: dict[int, Tensor], layers: int) -> None:
        self._before = np.stack([chosen.cpu().numpy() for chosen in by_layer.values()], axis=1)

    def of_prompt(self) -> list[bytes]:
        places = np.arange(len(self._before))
        return packed_keys(places[:, None, None] - self._before)

    def of_row(self, row: int, position: int) -> bytes:
        return packed_keys(position - self._before[row : row + 1], position)[0]


Chosen = ChosenExperts | ChosenKeys
KINDS: dict[str, Callable[[dict[int, Tensor], int], Chosen]] = {
    ROUTED_EXPERTS: ChosenExperts,
    INDEXER_TOPK: ChosenKeys,
}


class Choices:
    """Listens to every module `experts` and `indexer` of a decoder.

    `columns`: those of `rlcore.REPLAYS` that it can give; `wanted`: those that are kept; `take` empties them.
    """

    def __init__(self, model: Any) -> None:
        config = model.config.get_text_config()
        self.columns: frozenset[str] = frozenset()
        self.wanted: frozenset[str] = frozenset()
        self._layers = int(config.num_hidden_layers)
        self._forwards: dict[str, list[dict[int, Tensor]]] = {name: [] for name in KINDS}
        chooses = any(getattr(config, field, None) for field in ("num_experts_per_tok", "index_topk"))
        for number, layer in enumerate(model.model.layers if chooses else ()):
            for name, module in layer.named_modules():
                if name.rpartition(".")[2] == "experts":
                    module.register_forward_pre_hook(partial(self._hear_experts, number))
                    self.columns |= {ROUTED_EXPERTS}
                elif name.rpartition(".")[2] == "indexer":
                    module.register_forward_hook(partial(self._hear_keys, number))
                    self.columns |= {INDEXER_TOPK}

    def take(self) -> dict[str, list[Chosen]]:
        """Wanted column → what was chosen in each forward since the last call, its tokens in order."""
        taken = {
            name: [KINDS[name](one, self._layers) for one in self._forwards[name]] for name in self.wanted
        }
        for forwards in self._forwards.values():
            forwards.clear()
        return taken

    def _hear_experts(self, layer: int, module: nn.Module, args: tuple[Tensor, Tensor, Tensor]) -> None:
        """transformers calls `experts` with (hidden, experts [T, K], weights)."""
        self._keep(ROUTED_EXPERTS, layer, args[1])

    def _hear_keys(self, layer: int, module: nn.Module, args: tuple[Any, ...], columns: Tensor) -> None:
        """An indexer gives the columns [B, n, K] of its keys; its mask, args[3], is [B, n, columns]."""
        queries, width = args[3].shape[1:]
        own = torch.arange(width - queries, width, device=columns.device)  # a query's own column
        self._keep(INDEXER_TOPK, layer, (own[:, None] - columns).flatten(0, 1))

    def _keep(self, name: str, layer: int, chosen: Tensor) -> None:
        if name not in self.wanted:
            return
        forwards = self._forwards[name]
        if not forwards or layer <= max(forwards[-1]):
            forwards.append({})  # a forward goes from the first layer to the last
        forwards[-1][layer] = chosen
