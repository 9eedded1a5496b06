"""One run under several parallel layouts of the trainer; each layout is trained once a session."""

import json
import re
from pathlib import Path
from typing import Any

from command import LIMIT_S, Command
from inputs import chats, make_model, write_jsonl, write_parquet

LAYOUTS = {
    "one": (),
    "tp2_sp": ("--megatron.tensor-model-parallel-size", "2", "--megatron.sequence-parallel"),
    "pp2": ("--megatron.pipeline-model-parallel-size", "2"),
    "dp2": ("--ranks", "2", "--engines", "2"),
}
STEPS, PROMPTS, HELD_OUT, GROUP = 2, 8, 8, 4
SIZES = (
    *("--steps", str(STEPS), "--prompts-per-step", str(PROMPTS), "--group-size", str(GROUP)),
    *("--max-prompt-tokens", "96", "--max-response-tokens", "24", "--lr", "1e-5", "--save-every", "1"),
)


def own_input(root: Path, model_type: str = "qwen3", **changes: Any) -> tuple[str, ...]:
    """The flags of a model directory, a jsonl file and a held-out parquet file, all made under `root`."""
    model = make_model(root / "model", model_type, **changes)
    data = write_jsonl(root / "train.jsonl", chats(64, seed=3))
    held_out = write_parquet(root / "held_out.parquet", chats(HELD_OUT, seed=4))
    return ("--model", str(model), "--data", str(data), "--source.eval-path", str(held_out), "--reward", "f1")


class Layouts:
    """`run(NAME)`: the run folder of that layout."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._flags = own_input(root)
        self.model = root / "model"

    def run(self, name: str) -> Path:
        """Trained on the first call."""
        folder = self._root / name
        if not folder.exists():
            self._train(name, folder)
        return folder / "run"

    def _train(self, name: str, folder: Path) -> None:
        folder.mkdir()
        flags = (*self._flags, *SIZES, "--minibatches", "2", *LAYOUTS[name])
        command = Command("train", "--algo", "grpo", *flags, "--run-dir", "run", "--json", cwd=folder)
        try:
            code = command.wait(LIMIT_S)
        finally:
            command.stop()
        assert code == 0, command.stderr[-4000:]
        assert json.loads(command.stdout)["exit_reason"] == "completed"


def requests_served(run_dir: Path, path: str, engine: int = 0) -> int:
    """How many requests of `path` an engine answered with 200, as its own log has them."""
    log = (run_dir / "logs" / f"engine-{engine}.log").read_text(errors="replace")
    return len(re.findall(rf'"POST {re.escape(path)} HTTP/1\.[01]" 200', log))
