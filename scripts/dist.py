"""A wheel and an sdist of every member, in one folder: what a release uploads, and a local index for pip.

python scripts/dist.py [FOLDER]    dist/ by default; what an earlier call built there is replaced

Each is built from a copy with the license beside it, which goes into both.
"""

from __future__ import annotations

import shutil
import sys
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from hatchling import build

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from hatch_build import members  # noqa: E402 - it lies in the root

NOT_COPIED = shutil.ignore_patterns("__pycache__", ".*_cache")


def main(out: Path) -> None:
    """See the top."""
    out.mkdir(parents=True, exist_ok=True)
    for old in (*out.glob("rlcore*.whl"), *out.glob("rlcore*.tar.gz")):
        old.unlink()
    with TemporaryDirectory() as folder:
        for member in members(ROOT):
            copy = shutil.copytree(member, Path(folder) / member.relative_to(ROOT), ignore=NOT_COPIED)
            shutil.copy(ROOT / "LICENSE", copy)
            with chdir(copy), redirect_stdout(StringIO()):
                build.build_sdist(str(out))
                build.build_wheel(str(out))
    print(f"{len(list(out.glob('*.whl')))} wheels and {len(list(out.glob('*.tar.gz')))} sdists in {out}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist").resolve())
