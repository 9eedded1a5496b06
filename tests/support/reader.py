"""A reader of the documentation: types the lines of a page into a terminal, one after the other.

The folder holds what the reader is supposed to have: a finished run, a model, files of prompts. Each program
runs in the cheapest way that still notices a mistake in its line. `NOT_HERE` lists what cannot run here.
"""

import asyncio
import functools
import importlib
import json
import os
import re
import shlex
import shutil
import signal
import site
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from collections.abc import Callable, Sequence
from contextlib import chdir
from glob import glob
from importlib.metadata import metadata
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from command import VARIABLES, Command, wait_for
from hatchling.build import build_editable, build_sdist, build_wheel
from packaging.requirements import Requirement
from pages import ROOT, blocks

from rlcore import Sample
from rlcore_cli.main import run
from rlcore_session.config import SessionConfig
from rlcore_session.generator import SessionGenerator
from rlcore_testing.programs import ran
from rlcore_testing.token_engine import greeted

NOT_HERE = {
    "docker": "needs a container runtime",
    "ray stop": "ends every Ray of this host, that of another test too",
    "wandb": "needs an account; tests of the tracker write offline",
    "MLFLOW_ALLOW_FILE_STORE=true mlflow": "another project's page; tests of the tracker read its files",
    "tensorboard": "another project's page; tests of the tracker read its files",
    "sh": "installs the kit of `make gpu-kit`, gigabytes; tests/packaging/test_gpu_proof.py runs install.sh",
}
"""Programs that no test starts, and why."""
RUNS = (
    *("first", "whole", "sampled", "RUN", "runs/first", "runs/teacher", "runs/20260301-101500-grpo-qwen3"),
    *("second", "runs/second"),
)
"""What the pages call a run that is finished."""
PRESETS = ("qwen3", "llama", "glm", "deepseek", "qwen3-8b", "qwen3-32b", "qwen3-235b-a22b")
VERL = """python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8 \\
    actor_rollout_ref.model.path={model} data.train_files=rows.jsonl trainer.default_local_dir=$HOME/runs \\
    data.max_response_length=64 data.max_prompt_length=64
"""
TRL = """from trl import GRPOConfig, GRPOTrainer
GRPOTrainer("Qwen/Qwen3-0.6B", args=GRPOConfig(num_generations=8), train_dataset=load_dataset("a/b")).train()
"""
"""What the page about verl and TRL imports."""

SLIME = """source "$(dirname "$0")/models/qwen3-4B.sh"
ROLLOUT_ARGS=(
   --hf-checkpoint {model} --prompt-data rows.jsonl --input-key prompt --label-key label
   --num-rollout 2 --rollout-batch-size 32 --n-samples-per-prompt 8 --rm-type math
)
"""
"""A run script in the shape of slime's."""
OF_MODELS = ("--model", "--teacher.model", "--reference.model", "--critic.model")
ROW = {
    "prompt": "12",
    "question": "12",
    "label": "12",
    "answer": "12",
    "response": "12",
    "chosen": "12",
    "rejected": "21",
    "messages": [{"role": "user", "content": "12"}, {"role": "assistant", "content": "12"}],
    "metadata": {"weight": 1.0, "difficulty": 1},
}
"""A row with every key that the pages name."""
SMALL = ("--prompts", "1", "--max-response-tokens", "4")
"""What makes an evaluation quick."""
TINY = ("qwen3", "warm", "deepseek")
"""Models that train here in seconds: presets, and what a page makes of one."""
CUT = ("--prompts-per-step", "4", "--eval-prompts", "2")
"""What makes a training quick, beside its few steps."""
FEW = ("--prompts-per-step", "1", "--group-size", "2", "--eval-prompts", "1", "--no-eval-first")
"""In place of `CUT` where each sample starts a program."""
CHECKPOINT = re.compile(r"(?<=checkpoints/)(N|\d+)")
MYPY = ROOT / ".mypy_cache/new"
"""What mypy knows of rlcore, which takes it a while: test_new_command.py has the same settings."""
DOWNLOADS = "make_model.py"
"""It makes a real model: tests/e2e/test_examples.py runs it. Here a tiny one stands for that."""
OF_READERS = {"build", "tensorboard"}
"""Packages of the pages that nothing here needs."""


class Reader:
    """At a terminal in `folder`. `finished`: a run of two steps. `model`: a Hugging Face directory.

    `trains`: tiny models train for a few steps, and `trained` counts them. Otherwise a training is a dry run.
    `type` raises `AssertionError` for a line that fails, or of which nothing says how it runs.
    """

    def __init__(self, folder: Path, model: Path, finished: Path, *, trains: bool = False) -> None:
        self._folder, self._model, self._trains = folder, model, trains
        self.trained = 0
        self._variables: dict[str, str] = {}
        self._packages: list[str] = []
        self._programs: dict[str, Callable[[list[str], str], object]] = {
            "rlcore": lambda words, line: self.rlcore(line.partition("rlcore ")[2]),
            "make": lambda words, line: make(words[1:]),
            "pip": lambda words, line: self._pip(words),
            "python": lambda words, line: self._python(words),
            "cd": lambda words, line: os.chdir(words[1]),
            "curl": lambda words, line: report_of(line),
            "pytest": lambda words, line: self._process([sys.executable, "-m", *words, "-q"]),
            "mypy": lambda words, line: self._process(
                [sys.executable, "-m", *words, "--cache-dir", str(MYPY)]
            ),
            "ray": lambda words, line: ray(words[1:]),
            "ruff": lambda words, line: self._process([sys.executable, "-m", *words, "--no-cache"]),
            ".": lambda words, line: environment(words[1]),
            **dict.fromkeys(("mkdir", "tail", "head"), lambda words, line: self._bash(line)),
        }
        self._fill(finished)

    def _fill(self, finished: Path) -> None:
        for name in RUNS:
            run_dir = finished.with_name("second") if name.endswith("second") else finished
            link(self._folder / name, run_dir)
        link(self._folder / "path/to/hf-directory", self._model)
        files = {
            block.file: block.text for block in blocks("python") if block.file and not block.is_of_package
        }
        files |= {
            "run.toml": f'algo = "grpo"\nmodel = "{self._model}"\ntask = "copy"\n',
            "evals.toml": '[eval.math]\ntask = "reverse"\n',
            "scripts/run-qwen3-4B.sh": SLIME.format(model=self._model),
            "scripts/models/qwen3-4B.sh": "MODEL_ARGS=(--num-layers 36)\n",
            "run_qwen3_8b.sh": VERL.format(model=self._model),
            "train_grpo.py": TRL,
        }
        for name, text in files.items():
            (self._folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self._folder / name).write_text(text)
        write_data(self._folder / "rows.jsonl")
        ignored = shutil.ignore_patterns("runs", "*.png", "__pycache__", "model")
        shutil.copytree(ROOT / "examples", self._folder / "examples", ignore=ignored)

    def type(self, line: str) -> None:
        """Run one line of the shell."""
        if match := re.fullmatch(r"(\w+)=\$\((.*)\)", line):
            self._variables[match[1]] = self._bash(match[2]).strip()
            return
        for part in line.split(" && "):
            if not any(re.match(rf"{re.escape(name)}\b", part) for name in NOT_HERE):
                words = shlex.split(re.sub(r"^(?:[A-Z_]+=\S+ )+", "", part))
                name = words[0].rpartition("bin/")[2]
                assert name in self._programs, f"{line}: reader.py does not say how {name!r} runs"
                self._programs[name](words, part)

    def rlcore(self, line: str) -> None:
        """Run `rlcore LINE`; of a command alone, its help."""
        args = [self._expanded(arg) for arg in shlex.split(line.partition(" > ")[0])]
        commands: dict[str, Callable[[list[str]], object]] = {
            "train": self._train,
            "eval": self._eval,
            "view": view,
            "export": in_its_own_process,
            "convert": in_its_own_process,
            "doctor": doctor,
            "pairs": pairs,
            "plan": plan,
        }
        alone = args in (["import", "slime"], [args[0]]) and args[0] not in ("plugins", "doctor")
        if alone:
            rlcore([*args, "--help"])
        else:
            commands.get(args[0], rlcore)(args)
        if args[0] == "new":
            self._change_package(Path(f"rlcore-{args[-1]}"))

    def _change_package(self, package: Path) -> None:
        """As the pages say."""
        for block in blocks("python"):
            if block.is_of_package and Path(block.file).is_relative_to(package):
                Path(block.file).write_text(block.text)

    def _expanded(self, arg: str) -> str:
        for name, value in self._variables.items():
            arg = arg.replace(f"${name}", value)
        return CHECKPOINT.sub("2", arg)

    def _train(self, args: list[str]) -> None:
        args = args if "--resume" in args else self._prepared(args)
        if self._trains and trains_here(args):
            self._train_for_real(args)
            self.trained += 1
        else:
            rlcore([*args, "--dry-run"])

    def _train_for_real(self, args: list[str]) -> None:
        run_dir = Path(args[args.index("--run-dir") + 1]) if "--run-dir" in args else None
        if run_dir is not None and run_dir.is_symlink():  # the finished run, which this one replaces
            run_dir.unlink()
        cut = () if "--resume" in args else FEW if "--generator.command" in args else CUT
        steps = "5" if "--profile-steps" in args else "3" if "--resume" in args else "2"
        args = [*args, *cut, "--steps", steps, "--cluster", "processes"]
        in_its_own_process(args, self._packages)
        if run_dir is not None:  # pages read the evaluation of a later step
            (run_dir / "samples/eval-100.jsonl").symlink_to("eval-2.jsonl")

    def _eval(self, args: list[str]) -> None:
        """SGLang is not here: of its evaluation, the flags are read."""
        args = self._prepared(args)
        if "sglang" in args:
            rlcore([*args, "--help"])
        elif "--dry-run" in args:
            rlcore(args)
        else:
            in_its_own_process([*args, *SMALL])

    def _prepared(self, args: list[str]) -> list[str]:
        """The arguments with the reader's files made, and the model's folder for models that are not here."""
        if "…" in args:
            args = [args[0], "--algo", "grpo", "--model", "qwen3", *(arg for arg in args[1:] if arg != "…")]
        given = {arg.partition("=")[0] for arg in args}
        if any(arg.startswith("--sglang.") for arg in args) and "--engine" not in given:
            args = [*args, "--engine", "sglang"]  # the default where there is a GPU
        args = [*args]
        for place, arg in enumerate(args):
            before = args[place - 1]
            made = self._trains and arg in TINY and Path(arg).is_dir()
            if before in OF_MODELS and arg not in PRESETS and not made:
                drafts = "--megatron.mtp-num-layers" in args
                args[place] = str(self._model / "drafts" if drafts else self._model)
            elif before == "--frozen":
                name = arg.partition("=")[0]
                args[place] = f"{name}={self._model / 'classifier' if name == 'rm' else self._model}"
            elif match := re.fullmatch(r"(?:\w+=)?([\w/-]+\.(?:jsonl|parquet))(?:[\[:].*)?", arg):
                write_data(Path(match[1]))
        return args

    def _process(self, args: Sequence[str]) -> str:
        """What it prints; it finds the packages that the reader has installed."""
        path = os.pathsep.join([*self._packages, os.environ.get("PYTHONPATH", "")])
        known = {**os.environ, **VARIABLES, "PYTHONPATH": path}
        done = subprocess.run(args, env=known, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, f"{shlex.join(args)}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout

    def _bash(self, line: str) -> str:
        path = shlex.quote(str(Path(sys.executable).parent))
        return self._process(["bash", "-euo", "pipefail", "-c", f"PATH={path}:$PATH; {line}"])

    def _pip(self, words: list[str]) -> None:
        """Install folders as pip does, by their own build backend. Other names must be known."""
        assert words[1] == "install"
        for name in (word for word in words[2:] if not word.startswith("-")):
            if name.startswith("."):
                self._install(Path(name.partition("[")[0]))
            else:
                check_known(Requirement(name))

    def _install(self, project: Path) -> None:
        target = self._folder / "site"
        target.mkdir(exist_ok=True)
        with chdir(project):
            wheel = target / build_editable(str(target))
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(target)
        wheel.unlink()
        self._packages = [str(target), *(file.read_text().strip() for file in target.glob("*.pth"))]
        site.addsitedir(str(target))
        importlib.invalidate_caches()

    def _python(self, words: list[str]) -> None:
        """A script of the page runs. One of the repository has to know its flags."""
        script = words[1]
        if words[1:3] == ["-m", "build"]:
            build()
        elif script == DOWNLOADS:
            link(Path("model"), self._model)
        elif script.startswith(("benchmarks/", "scripts/")):
            assert not [word for word in words[2:] if word.startswith("-") and word not in help_of(script)]
        else:
            self._process([sys.executable, *words[1:]])


def rlcore(args: Sequence[str]) -> None:
    assert run(args) == 0, f"rlcore {shlex.join(args)}"


def trains_here(args: Sequence[str]) -> bool:
    """A training on the local engine whose model is tiny, or a run of the page that goes on."""
    if {"--dry-run", "--help", "sglang"} & {*args}:
        return False
    return "--resume" in args or any(pair[0] == "--model" and pair[1] in TINY for pair in pairwise(args))


def in_its_own_process(args: Sequence[str], packages: Sequence[str] = ()) -> None:
    """What starts engines, or fills a process with megatron."""
    command = Command(*args, cwd=Path.cwd(), packages=packages)
    try:
        assert command.wait(60) == 0, f"rlcore {shlex.join(args)}\n{command.stderr[-4000:]}"
    finally:
        command.stop()


def view(args: Sequence[str]) -> None:
    """Its page is there, and Ctrl-C ends it. A port of the pages may be taken here."""
    free = [re.sub(r"^\d{4}$", "0", arg) for arg in args]
    command = Command(*free, "--no-browser", cwd=Path.cwd())
    try:
        wait_for(lambda: "Ctrl-C ends it" in command.stdout, 30, alive=command)
        with urllib.request.urlopen(command.stdout.split()[0], timeout=10) as page:
            assert "rlcore" in page.read().decode()
        os.kill(command.process.pid, signal.SIGINT)
        assert command.wait(20) == 0
    finally:
        command.stop()


def doctor(args: Sequence[str]) -> None:
    """It may find that this machine lacks something. That Ray starts is tested with the command."""
    words = [str(ROOT / word) if word == "requirements-gpu.txt" else word for word in args]
    assert run([*words, "--cluster", "processes"]) in (0, 1)


def plan(args: Sequence[str]) -> None:
    """The model of the tests is too small for the layouts of the pages; a preset stands for it."""
    rlcore(["qwen3-8b" if arg == "path/to/hf-directory" else arg for arg in args])


def pairs(args: Sequence[str]) -> None:
    """With the patterns expanded, and no file of an earlier line in the way."""
    Path(args[-1]).unlink(missing_ok=True)
    rlcore([name for arg in args for name in (sorted(glob(arg)) if "*" in arg else [arg])])


def ray(words: list[str]) -> None:
    """It knows its flags. tests/e2e/test_cluster.py starts the head of the tutorial, and its run."""
    from ray.scripts.scripts import cli

    cli.commands[words[0]].make_context(words[0], words[1:])


def environment(script: str) -> None:
    """`make demo` makes it."""
    assert script == ".venv/bin/activate"
    assert ".venv/bin/rlcore train" in make(["demo"])


@functools.cache
def help_of(script: str) -> str:
    """What `python SCRIPT --help` says, of a script of the repository."""
    return subprocess.run(
        [sys.executable, str(ROOT / script), "--help"], capture_output=True, text=True, timeout=60, check=True
    ).stdout


def build() -> None:
    """`python -m build` is a front end: the backend of the project makes the wheel and the sdist."""
    assert Path("dist", build_wheel("dist")).is_file()
    with tarfile.open(Path("dist", build_sdist("dist"))) as sdist:
        assert not [name for name in sdist.getnames() if "/runs/" in name], "a run is nobody else's"


def make(arguments: Sequence[str]) -> str:
    """What `make ARGUMENTS` would do in the repository: each line of it is good for a shell."""
    done = ran("make", "-n", "--no-print-directory", *arguments, limit_s=30, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    subprocess.run(["bash", "-n"], input=done.stdout, text=True, timeout=10, check=True)
    return done.stdout


def check_known(requirement: Requirement) -> None:
    """It is installed here, with the extras that it asks for; or it is in `OF_READERS`."""
    if requirement.name not in OF_READERS:
        assert requirement.extras <= set(metadata(requirement.name).get_all("Provides-Extra") or ())


def link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def write_data(path: Path) -> None:
    """64 rows, unless the file is there."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{**ROW, "prompt": f"{number:03d}"} for number in range(64)]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)


def report_of(line: str) -> None:
    """Run `line` as the program of a session: its endpoint is the real one, and hears of the reward."""
    asks = {"messages": [{"role": "user", "content": "hi"}]}
    first = f"""curl -s -H "Authorization: Bearer $OPENAI_API_KEY" -d '{json.dumps(asks)}'"""
    found = asyncio.run(_session(f"{first} $OPENAI_BASE_URL/chat/completions && {line}"))
    (sent,) = re.findall(r"-d '(.*?)'", line)
    assert found.score is not None, found.metadata
    assert {"reward": found.score.value, "parts": dict(found.score.parts)} == json.loads(sent)


async def _session(script: str) -> Sample:
    config = SessionConfig(command=("bash", "-euc", script), reward="agent", timeout=60)
    return await greeted(SessionGenerator(config))
