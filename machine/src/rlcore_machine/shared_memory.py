"""Folders that the processes of this machine share, in memory where there is room."""

import os
import shutil
import tempfile
from pathlib import Path


def shared_dir(name: str, need: int) -> Path:
    """A new private folder for `need` bytes: in memory where that has room. Its name says whose it is."""
    memory = Path("/dev/shm")
    has_room = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > need
    return Path(tempfile.mkdtemp(prefix=f"rlcore-{name}-{os.getpid()}-", dir=memory if has_room else None))
