"""`python -m openai_engine.server MODEL HOST PORT SEED_OFFSET`: one request at a time, by transformers."""

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

TOKEN = "RLCORE_ENGINE_TOKEN"


class Model:
    """What answers, and the version of its weights."""

    def __init__(self, path: str, seed_offset: int) -> None:
        loaded: Any = AutoModelForCausalLM
        self.model = loaded.from_pretrained(path, dtype=torch.float32).eval()
        self.tokenizer: Any = AutoTokenizer.from_pretrained(path)
        end = self.model.generation_config.eos_token_id
        self.ends = set(end if isinstance(end, list) else [end])
        self.version = 0
        self.seed_offset = seed_offset
        self.turn = threading.Lock()

    def load(self, path: str, version: int) -> dict[str, Any]:
        """New weights. A tied matrix may have one name only."""
        with self.turn:
            missing = self.model.load_state_dict(load_file(Path(path) / "model.safetensors"), strict=False)
            assert not missing.unexpected_keys
            self.model.tie_weights()
            self.version = version
        return {}

    @torch.inference_mode()
    def complete(self, asked: dict[str, Any]) -> dict[str, Any]:
        """`n` samples of one prompt."""
        with self.turn:
            draw = torch.Generator().manual_seed((asked["seed"] or 0) % 2**62 + self.seed_offset)
            ids = torch.tensor([asked["prompt"]] * asked["n"])
            found: list[list[tuple[int, float]]] = [[] for _ in range(asked["n"])]
            ended = [False] * asked["n"]
            for _ in range(asked["max_tokens"]):
                logits = self.model(ids).logits[:, -1].float()
                greedy = asked["temperature"] == 0
                log_probs = (logits if greedy else logits / asked["temperature"]).log_softmax(-1)
                picked = (
                    log_probs.argmax(-1) if greedy else log_probs.exp().multinomial(1, generator=draw)[:, 0]
                )
                for row, token in enumerate(picked.tolist()):
                    if not ended[row]:
                        found[row].append((token, float(log_probs[row, token])))
                        ended[row] = token in self.ends
                if all(ended):
                    break
                ids = torch.cat([ids, picked[:, None]], 1)
            return {"version": self.version, "choices": list(map(self._choice, found, ended))}

    def _choice(self, sampled: list[tuple[int, float]], ended: bool) -> dict[str, Any]:
        ids = [token for token, _ in sampled]
        return {
            "token_ids": ids,
            "text": self.tokenizer.decode(ids[:-1] if ended else ids),
            "finish_reason": "stop" if ended else "length",
            "logprobs": {"token_logprobs": [value for _, value in sampled]},
        }


class Handler(BaseHTTPRequestHandler):
    """`/health` for all, the rest for who has the token."""

    model: Model
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer({"version": self.model.version} if self.path == "/version" else {})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._is_allowed():
            self._answer({})
            return
        self._answer(self.model.load(**asked) if self.path == "/load" else self.model.complete(asked))

    def _is_allowed(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {os.environ[TOKEN]}"

    def _answer(self, found: dict[str, Any]) -> None:
        body = json.dumps(found).encode()
        self.send_response(200 if self._is_allowed() else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


class Server(ThreadingHTTPServer):
    """Takes all requests of a round at once."""

    request_queue_size = 256
    daemon_threads = True


if __name__ == "__main__":
    path, host, port, seed_offset = sys.argv[1:]
    torch.set_num_threads(1)
    Handler.model = Model(path, int(seed_offset))
    Server((host, int(port)), Handler).serve_forever()
