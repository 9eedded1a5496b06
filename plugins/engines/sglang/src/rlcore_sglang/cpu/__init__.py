"""What an unmodified SGLang needs on a machine without a GPU, where neither triton nor sgl-kernel exists.

`site/` goes on the server's PYTHONPATH: import-only stand-ins for `triton` and `torchvision`, and a platform
plugin (entry point `sglang.srt.platforms`) that SGLang finds by itself, in its child processes too.
"""

import os
from collections.abc import Mapping
from pathlib import Path

SITE = Path(__file__).parent / "site"

FIELDS: Mapping[str, object] = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "disable_overlap_schedule": True,
    "disable_cuda_graph": True,
    "mem_fraction_static": 0.3,
    "max_total_tokens": 65536,
    "sleep_on_idle": True,  # the scheduler spins on a core otherwise
}
"""ServerArgs of a CPU server; `--sglang.<field>` overrides them."""


def environment(python: str | None, *, threads: int) -> dict[str, str]:
    """Added to the server's environment. Another interpreter (`python`) gets no PYTHONPATH of this one."""
    own = os.environ.get("PYTHONPATH") if python is None else None
    return {
        "PYTHONPATH": os.pathsep.join([str(SITE), *([own] if own else [])]),
        "OMP_NUM_THREADS": str(threads),
        "TORCHDYNAMO_DISABLE": "1",  # compiling small CPU kernels costs more than it gives
    }


def shared_cpus(ranks: int) -> dict[str, str]:
    """Added to the environment of a server of several ranks: each may use every CPU that this process may.

    Untold, SGLang wants a NUMA node for each rank. A user's own choice stands.
    """
    name, cpus = "SGLANG_CPU_OMP_THREADS_BIND", ",".join(map(str, sorted(os.sched_getaffinity(0))))
    return {name: os.environ.get(name, "|".join([cpus] * ranks))} if ranks > 1 else {}
