"""Processes that say which GPUs they see, in the place of train workers and engines."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlcore import Engine, EngineConfig, EngineLaunch, Publisher, ServerCommand
from rlcore_toolkit import DiskPublisher, disk_room

GPUS = """
import http.server, os, pathlib, sys
out, port = sys.argv[1:]
pathlib.Path(out).write_text(os.environ["CUDA_VISIBLE_DEVICES"])
class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(port)), Healthy).serve_forever()
"""


class SeeingEngine(Engine[EngineConfig]):
    """Engines of four GPUs in two processes, each of which writes down those that it sees."""

    name = "seeing"

    def publisher(
        self, *, weights_dir: str, model_path: str, dtype: str, external: bool = False
    ) -> Publisher:
        return DiskPublisher(root=Path(weights_dir), dtype=dtype, model_path=Path(model_path))

    def room(self, size: int) -> int:
        return disk_room(size)

    def devices(self, fields: Mapping[str, Any]) -> int:
        return 4

    def nodes(self, fields: Mapping[str, Any]) -> int:
        return 2

    def command(self, launch: EngineLaunch) -> ServerCommand:
        argv = (sys.executable, "-S", "-c", GPUS, f"{launch.log_path}.gpus", str(launch.port))
        return ServerCommand(argv=argv, env={})


class Worker:
    """What stands for a train worker."""

    def gpus(self) -> str:
        return os.environ["CUDA_VISIBLE_DEVICES"]
