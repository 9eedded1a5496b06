"""Whether Ray works on this machine, for `rlcore doctor`."""

import shutil
import subprocess
import sys
from collections.abc import Iterator

from rlcore import Diagnosis

LIMIT_S = 90.0
START = """
import sys
from rlcore import RlcoreError
from rlcore_ray.cluster import RayCluster
from rlcore_ray.config import RayConfig
cluster = RayCluster(RayConfig(address=sys.argv[1] or None))
try:
    cluster.connect(cpus=1, gpus=0, remove=lambda folder: print(folder, flush=True))
    import ray
    print(ray.__version__)
except RlcoreError as error:
    sys.exit(str(error))
finally:
    cluster.close()
"""
"""What a run does, with its token and its addresses; in a process of its own, since Ray may hang.

It prints the folder of a Ray of its own, then the version.
"""


def diagnoses(address: str | None) -> Iterator[Diagnosis]:
    """Whether a Ray of the run's own starts, or the one at `address` answers."""
    remedy = "Runs of one machine work with `--cluster processes`; the last line of Ray says why it failed."
    command = [sys.executable, "-c", START, address or ""]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired as error:
        for folder in (error.stdout or b"").splitlines():  # its process could not remove it any more
            shutil.rmtree(folder, ignore_errors=True)
        yield Diagnosis(what="start", found=f"takes more than {LIMIT_S:g} s", remedy=remedy)
        return
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no reason was given"]
        yield Diagnosis(what="start", found=f"fails: {lines[-1].strip()[:200]}", remedy=remedy)
        return
    yield Diagnosis(what="start", found=f"works with Ray {done.stdout.split()[-1]}")
