"""Processes that say which GPUs they see, in the place of train workers and engines."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from rlcore.api.engine import Engine, EngineLaunch, ServerCommand
from rlcore.api.part_config import EngineConfig

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
