"""An import-only `torchvision`: a text server transforms no image."""

import enum

import _import_stub

_module = _import_stub.install("torchvision")
_module.__version__ = "0.0.0"
_modes = ("nearest", "nearest_exact", "bilinear", "bicubic", "box", "hamming", "lanczos")
_interpolation = enum.Enum("InterpolationMode", {name.upper(): name for name in _modes})  # type: ignore[misc]  # computed names
for _place in (_module.transforms, _module.transforms.functional, _module.transforms.v2.functional):
    _place.InterpolationMode = _interpolation
