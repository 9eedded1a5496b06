"""Write train.jsonl and held_out.jsonl: the multiplication table in words.

Both orders of a pair of numbers are in the same file.
"""

import json
import random
from pathlib import Path

NUMBERS = range(1, 13)
HELD_OUT = 1 / 3


def main() -> None:
    """The same files each time."""
    pairs = [(a, b) for a in NUMBERS for b in NUMBERS if a <= b]
    random.Random(0).shuffle(pairs)
    held_out = round(HELD_OUT * len(pairs))
    for name, part in (("held_out", pairs[:held_out]), ("train", pairs[held_out:])):
        rows = [question(a, b) for pair in part for a, b in sorted({pair, pair[::-1]})]
        text = "".join(f"{json.dumps(row)}\n" for row in rows)
        Path(__file__).with_name(f"{name}.jsonl").write_text(text, encoding="utf-8")


def question(a: int, b: int) -> dict[str, object]:
    """A chat, and its label."""
    system = {"role": "system", "content": "Answer with a number."}
    user = {"role": "user", "content": f"What is {a} times {b}?"}
    return {"prompt": [system, user], "label": str(a * b)}


if __name__ == "__main__":
    main()
