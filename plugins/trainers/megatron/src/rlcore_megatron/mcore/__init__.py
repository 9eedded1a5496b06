"""The trainer on megatron-core: one code path for CPU (gloo) and GPU (NCCL), from unpatched wheels.

Importing this package makes megatron-core importable on the machine at hand; it must come before any import
of `megatron.core` or `mbridge` in the process.
"""

from rlcore_megatron.mcore import imports
from rlcore_megatron.source import known_fields, table

imports.prepare()
# Every worker needs these. One that is forked finds them read.
known_fields()
table()
