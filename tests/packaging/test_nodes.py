"""scripts/nodes: what starts a run on SLURM (tests/e2e/test_slurm.py), on KubeRay and in a container."""

import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gpu_lock
import jsonschema
import pytest
import yaml

from rlcore_cli.main import run

ROOT = Path(__file__).resolve().parents[2]
NODES = ROOT / "scripts" / "nodes"
TEXT, NUMBER, FLAG, MAP = ({"type": kind} for kind in ("string", "integer", "boolean", "object"))
TEXTS = {"type": "object", "additionalProperties": TEXT}


def record(required: tuple[str, ...] = (), **properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def array(items: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


CONTAINER = record(
    ("name", "image"),
    name=TEXT,
    image=TEXT,
    env=array(record(("name",), name=TEXT, value=TEXT)),
    resources=record(limits=TEXTS, requests=TEXTS),
    volumeMounts=array(record(("name", "mountPath"), name=TEXT, mountPath=TEXT)),
)
VOLUME = record(
    ("name",), name=TEXT, persistentVolumeClaim=record(claimName=TEXT), emptyDir=record(medium=TEXT)
)
POD = record(metadata=MAP, spec=record(("containers",), containers=array(CONTAINER), volumes=array(VOLUME)))
GROUP: dict[str, Mapping[str, Any]] = {"template": POD, "rayStartParams": TEXTS}
CLUSTER = record(
    ("headGroupSpec",),
    rayVersion=TEXT,
    authOptions=record(mode={"enum": ["disabled", "token"]}),
    headGroupSpec=record(("template",), **GROUP),
    workerGroupSpecs=array(
        record(
            ("groupName", "maxReplicas", "minReplicas", "template"),
            **{**GROUP, "groupName": TEXT, "replicas": NUMBER, "minReplicas": NUMBER, "maxReplicas": NUMBER},
        )
    ),
)
RAY_JOB = record(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayJob"},
    metadata=MAP,
    spec=record(
        activeDeadlineSeconds=NUMBER,
        backoffLimit=NUMBER,
        entrypoint=TEXT,
        rayClusterSpec=CLUSTER,
        runtimeEnvYAML=TEXT,
        shutdownAfterJobFinishes=FLAG,
        ttlSecondsAfterFinished=NUMBER,
    ),
)
"""What KubeRay's definition of a RayJob says of the fields that the manifest may have."""
INSTRUCTIONS = ("FROM", "RUN", "COPY", "ENV", "ENTRYPOINT")


def test_the_manifest_is_a_ray_job(capsys: pytest.CaptureFixture[str]) -> None:
    manifest = yaml.safe_load((NODES / "rayjob.yaml").read_text())
    jsonschema.validate(manifest, RAY_JOB)
    spec = manifest["spec"]
    assert f"ray=={spec['rayClusterSpec']['rayVersion']}\n" in gpu_lock.LOCK.read_text()
    assert set(yaml.safe_load(spec["runtimeEnvYAML"])["env_vars"]) == {"RAY_JOB_STOP_WAIT_TIME_S"}
    program, _, *flags = shlex.split(spec["entrypoint"])
    assert (ROOT / Path(program).relative_to("/opt/rlcore")).is_file()
    hosts = 1 + sum(group["replicas"] for group in spec["rayClusterSpec"]["workerGroupSpecs"])
    assert int(flags[flags.index("--cluster.hosts") + 1]) == hosts
    flags[flags.index("--model") + 1] = "qwen3"
    data = flags.index("--data")
    del flags[data : data + 4]  # with its reward
    assert run(["train", *flags, "--dry-run"]) == 0, capsys.readouterr().err


def test_the_steps_of_the_container_file() -> None:
    """Its instructions are known, its shell can be read, and its target is one of the Makefile."""
    text = re.sub(r"^#.*\n", "", (NODES / "Containerfile").read_text(), flags=re.MULTILINE)
    steps = [line.split(maxsplit=1) for line in text.replace("\\\n", " ").splitlines() if line]
    assert [name for name, _ in steps if name not in INSTRUCTIONS] == []
    assert steps[0][0] == "FROM"
    assert "cuda:13.0" in steps[0][1]
    shell = [words for name, words in steps if name == "RUN"]
    for words in shell:
        subprocess.run(["bash", "-n", "-c", words], check=True, timeout=60)
    [make] = [words.replace("/opt/rlcore", str(ROOT)) for words in shell if words.startswith("make ")]
    planned = subprocess.run(
        ["bash", "-c", f"{make} --dry-run"], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert "/opt/venv/bin/python -m pip install --no-deps -r requirements-gpu.txt" in planned
    [entry] = [words for name, words in steps if name == "ENTRYPOINT"]
    assert yaml.safe_load(entry) == ["rlcore"]


def test_a_run_that_is_there_goes_on(tmp_path: Path) -> None:
    program = tmp_path / "rlcore"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)

    def typed() -> str:
        return subprocess.run(
            [NODES / "train.sh", "run", "--steps", "9"],
            cwd=tmp_path,
            env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout

    assert typed() == "train --run-dir run --steps 9\n"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.toml").touch()
    assert typed() == "train --resume run --steps 9\n"
