"""A program that is an agent: the SDK finds its endpoint by environment variables alone."""

import json
import os
import sys
import urllib.request
from pathlib import Path


def main(mode: str) -> None:
    """`answer` asks once and reports; `crash`, `hang`: as they say, after a child of its own was started.

    `environment` writes its variables down.
    """
    if mode == "environment":
        Path(sys.argv[2]).write_text(json.dumps(dict(os.environ)))
        return
    if mode != "answer":
        import subprocess

        child = subprocess.Popen(["sleep", "600"], start_new_session=mode == "hang")
        Path(sys.argv[2]).write_text(str(child.pid))
        print("half way")
        if mode == "hang":
            child.wait()
        sys.exit(3)
    from openai import OpenAI

    task = json.loads(Path(os.environ["RLCORE_TASK_FILE"]).read_text())
    with OpenAI() as client:
        done = client.chat.completions.create(model="any", messages=task["messages"])
    report = {
        "reward": 0.5,
        "parts": {"length": len(done.choices[0].message.content or "")},
        "answer": "mine",
    }
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/report",
        json.dumps(report).encode(),
        {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
    )
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30).close()


if __name__ == "__main__":
    main(sys.argv[1])
