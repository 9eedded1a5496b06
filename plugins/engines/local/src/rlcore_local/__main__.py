"""`python -m rlcore_local`: load a model, serve it, and say `{"port": N}` on stdout when ready."""

import os
import sys
import threading
import time

from rlcore import RlcoreError
from rlcore_local.settings import parse_settings, read_token
from rlcore_machine import defer_collection, keep_memory, switch_threads_often

PARENT_CHECK_SECONDS = 0.5


def _end_with_parent(parent: int) -> None:
    """Leave when the process that started this one is gone, whatever the other threads do."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_SECONDS)
    os._exit(0)


def main() -> int:
    """Run until SIGTERM; the exit code is 2 for what the user can mend."""
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    try:
        keep_memory()
        defer_collection()  # until it serves
        switch_threads_often()  # the compute thread holds the lock while it lays out rows and writes answers
        settings, token = parse_settings(sys.argv[1:]), read_token()
        from rlcore_local.process import serve  # torch comes with it, after the settings were checked

        serve(settings, token)
    except RlcoreError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
