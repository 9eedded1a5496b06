"""Write the table of slime's run scripts in docs/migrating_from_slime.md (tests/support/slime_table.py)."""

import sys
from pathlib import Path

from rlcore.plugins.loader import load


def main() -> None:
    """Takes half a minute."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
    from slime_table import PAGE, rows, written

    PAGE.write_text(written(PAGE.read_text(), list(rows(load().registry))))


if __name__ == "__main__":
    main()
