"""The file that a server maps."""

from pathlib import Path

import torch
from safetensors.torch import save_file

from rlcore_toolkit.publishers.shared_memory import tensor_layout


def test_the_layout_says_where_each_tensor_lies(tmp_path: Path) -> None:
    generator, file = torch.Generator().manual_seed(0), tmp_path / "model.safetensors"
    tensors = {
        "b.weight": torch.randn(3, 5, generator=generator),
        "a.weight": torch.randn(7, generator=generator),
        "scalar": torch.tensor(2.5),
    }
    save_file(tensors, file, metadata={"format": "pt"})
    content = file.read_bytes()
    found = {name: (dtype, shape, offset) for name, dtype, shape, offset in tensor_layout(str(file))}
    assert set(found) == set(tensors)
    for name, value in tensors.items():
        dtype, shape, offset = found[name]
        assert dtype == "float32"
        raw = bytearray(content[offset : offset + value.nbytes])
        assert torch.equal(torch.frombuffer(raw, dtype=torch.float32).reshape(shape), value)
