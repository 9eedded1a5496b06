"""The console script: it imports next to nothing itself, so that Ctrl-C always ends it in one line."""

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run `rlcore_cli.main`, whose imports take a quarter of a second."""
    try:
        from rlcore_cli.main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted.\n")
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
