"""An adapter beside the weights that the server loaded: https://arxiv.org/abs/2106.09685."""

from collections.abc import Mapping

from torch import Tensor

from rlcore_local.requests import RequestError
from rlcore_toolkit import adapter_name, adapter_place, with_product


class HeldAdapter:
    """`tensors`: A and B of the last publication, by PEFT's names; empty: there is none. `base`: the weights
    that they change, as the server loaded them: each publication begins with these anew.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.base: dict[str, Tensor] = {}

    def merged(self, new: Mapping[str, Tensor], held: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The whole weights by `new` tensors of the adapter; of a module whose B is yet to come, none.

        `held`: all weights, by their names on disk. `RequestError`: the adapter is of another model.
        """
        now, weights = {**self.tensors, **new}, {}
        for module in dict.fromkeys(adapter_place(name)[0] for name in new):
            name = f"{module}.weight"
            base = self.base.get(name, held.get(name))
            if base is None:
                raise RequestError(f"the adapter's {module!r} is not of this model")
            a, b = (now.get(adapter_name(module, part)) for part in "AB")
            if a is None or b is None:
                continue
            if (len(b), *a.shape[1:]) != base.shape or len(a) != b.shape[1]:
                was = f"{list(b.shape)} and {list(a.shape)}"
                raise RequestError(f"{module}: B and A are {was}, but the weight is {list(base.shape)}")
            weights[name] = with_product(base, a.to(base.device), b.to(base.device), 1.0)
        return weights

    def keep(self, new: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> None:
        """Hold these from now on; copies, for what comes may be a file that is mapped. `base`: of weights
        that the adapter did not change before.
        """
        self.tensors |= {name: tensor.clone() for name, tensor in new.items()}
        self.base |= base

    def forget(self) -> None:
        """The weights came whole."""
        self.tensors, self.base = {}, {}
