"""Code that is not rlcore's: what a setting names, and packages that a plugin needs."""

import importlib
import importlib.util
import sys
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

from rlcore import ConfigError, MissingPackageError


def require_packages(setting: str, requirement: str, *packages: str) -> None:
    """Raises `MissingPackageError` unless `packages` are installed, which pip does for `requirement`."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingPackageError(
            f"{setting}: found no {' and no '.join(missing)}; pip install '{requirement}'."
        )


def load_object(name: str, flag: str) -> Any:
    """The object `module:NAME` or `path/to/file.py:NAME`. A file runs once in a process.

    Raises `ConfigError` that begins with `flag`, such as --generator.agent, whatever the user's code raises.
    """
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise ConfigError(f"{flag}: found {name!r}, expected module:NAME or path/to/file.py:NAME.")
    try:
        module = _module_of(Path(place)) if place.endswith(".py") else importlib.import_module(place)
        return getattr(module, attribute)
    except (Exception, SystemExit) as error:  # code without `if __name__ == "__main__"` may exit
        raise ConfigError(f"{flag} {name}: cannot be loaded, {type(error).__name__}: {error}.") from error


def _module_of(file: Path) -> ModuleType:
    path = file.resolve()
    # Not the file's own name, which an installed module may have.
    name = f"rlcore_file_{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "its name ends with .py"
    assert spec.loader is not None, "likewise"
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
