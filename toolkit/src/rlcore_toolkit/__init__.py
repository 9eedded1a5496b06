"""What plugins of several kinds share, and rlcore itself does not use.

`from rlcore_toolkit import Trajectory`: `__init__.pyi` lists the names. Each is loaded when it is asked for.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
