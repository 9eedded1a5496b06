"""Write problems.jsonl: sums of two numbers below 20, each once, in an order of chance."""

import json
import random
from pathlib import Path

NUMBERS = range(20)


def main() -> None:
    """The same file each time."""
    rows = [{"prompt": f"{a}+{b}=", "label": str(a + b)} for a in NUMBERS for b in NUMBERS]
    random.Random(0).shuffle(rows)
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    Path(__file__).with_name("problems.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
