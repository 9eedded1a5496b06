"""Starts SGLang's own server with the run's token: `python -P sglang_launch.py ARGV…`, run by path.

The token comes from the environment, so that it is on no command line that other users of the machine see.
"""

import os
import runpy
import sys
import warnings

if __name__ == "__main__":
    sys.argv.append(f"--api-key={os.environ['RLCORE_ENGINE_TOKEN']}")  # in one: a token may begin with a dash
    warnings.filterwarnings("ignore", message=".*sglang.launch_server.*is still supported")
    runpy.run_module("sglang.launch_server", run_name="__main__")
