"""Whether a module has an attribute, without running the module, which may import torch."""

import dis
import sys
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec
from importlib.util import find_spec


def attribute_fault(path: str) -> str | None:
    """Why "package.module:attribute" does not exist, as the end of a sentence; None: it may exist."""
    module, _, attribute = path.partition(":")
    wanted = attribute.partition(".")[0]
    if module in sys.modules:
        where = getattr(sys.modules[module], "__file__", None) or module
        return None if hasattr(sys.modules[module], wanted) else f"{where} has no {wanted!r}"
    try:
        spec = find_spec(module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            return f"there is no module {module!r}"
        return f"{module!r} cannot be imported: {error}"
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split()).removesuffix(".")
        return f"{module!r} cannot be imported: {type(error).__name__}{text and f': {text}'}"
    return f"there is no module {module!r}" if spec is None else _fault(spec, module, wanted)


def _fault(spec: ModuleSpec, module: str, wanted: str) -> str | None:
    try:
        code = spec.loader.get_code(module) if isinstance(spec.loader, InspectLoader) else None
    except (EOFError, ImportError):
        return None  # compiled by another Python: the import will tell
    except (SyntaxError, ValueError) as error:
        return f"{spec.origin} is no Python: {error}"
    if code is None:
        return None  # without a source: the import will tell
    binds = ("STORE_NAME", "STORE_GLOBAL")
    names = {step.argval for step in dis.get_instructions(code) if step.opname in binds}
    # `from x import *` may bring any name, and `__getattr__` may make it.
    if names.isdisjoint((wanted, "__getattr__")) and ("*",) not in code.co_consts:
        return f"{spec.origin} has no {wanted!r}"
    return None
