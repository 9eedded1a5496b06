"""Write tasks.jsonl: numbers to copy, each as a chat. The agent judges itself by the metadata."""

import json
import random
from pathlib import Path

TASKS, DIGITS = 500, 2


def main() -> None:
    """The same file each time."""
    chance = random.Random(0)
    rows = []
    for _ in range(TASKS):
        number = "".join(chance.choices("0123456789", k=DIGITS))
        chat = [{"role": "user", "content": f"copy {number}="}]
        rows.append({"prompt": chat, "label": number, "metadata": {"number": number}})
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    Path(__file__).with_name("tasks.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
