"""Stand-ins for packages that SGLang imports at module level and never executes for text on a CPU."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any


class _Base:
    """A class of a stubbed package: may be derived from, made and named in annotations."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__()


class Stub(types.ModuleType):
    """A module with every attribute: capitalized ones are classes, others modules that are decorators too."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__file__ = __file__
        self.__spec__ = importlib.machinery.ModuleSpec(name, Finder(), is_package=True)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        attribute: Any
        if name[:1].isupper():
            attribute = type(name, (_Base,), {"__module__": self.__name__})
        else:
            attribute = sys.modules.setdefault(full, Stub(full))
        setattr(self, name, attribute)
        return attribute

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the function where it stands as `@jit`, and a decorator that does as `@jit(…)`."""
        if len(args) == 1 and callable(args[0]) and not kwargs:
            return args[0]
        return lambda function: function

    def __bool__(self) -> bool:
        return False

    def __contains__(self, item: object) -> bool:
        return False


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every submodule of the stubbed packages."""

    roots: set[str] = set()  # noqa: RUF012 - the interpreter's own list of finders is global as well

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        root, dot, _ = name.partition(".")
        return (
            importlib.machinery.ModuleSpec(name, self, is_package=True)
            if dot and root in self.roots
            else None
        )

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return sys.modules.get(spec.name) or Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install(root: str) -> Any:
    """Makes `root` a stubbed package and returns its module."""
    if not Finder.roots:
        sys.meta_path.insert(0, Finder())
    Finder.roots.add(root)
    module = sys.modules[root] = Stub(root)
    return module
