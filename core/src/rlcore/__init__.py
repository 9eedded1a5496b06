"""rlcore: reinforcement-learning post-training of language models, made of plugins.

`from rlcore import Sample, Component, hookimpl`: `__init__.pyi` lists the public names. Each is loaded when
it is asked for.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = "0.1.0"
