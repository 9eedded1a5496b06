"""The trainer on megatron-core: one code path for CPU (gloo) and GPU (NCCL), from unpatched wheels.

Importing this package makes megatron-core importable on the machine at hand; it must come before any import
of `megatron.core` or `mbridge` in the process.
"""

from rlcore_megatron.mcore import imports

imports.prepare()
