"""What a plugin may ask of the machine without torch."""

from pathlib import Path

import pytest

from rlcore_toolkit import has_gpu_for, machine


@pytest.mark.parametrize(("gpu", "installed"), [(True, True), (True, False), (False, True)])
def test_a_library_that_needs_a_gpu(
    gpu: bool, installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_GPU_DEVICES", (tmp_path if gpu else tmp_path / "none",))
    if installed:
        (tmp_path / "serving").mkdir()
        (tmp_path / "serving" / "__init__.py").touch()
        monkeypatch.syspath_prepend(tmp_path)
    else:
        monkeypatch.setattr(machine, "find_spec", lambda name: None)
    assert has_gpu_for("serving") == (gpu and installed)
