"""Every command of the documentation runs, in the cheapest way that notices a mistake (`reader.py`).

A line of `rlcore train` is a dry run: its names, values and files are checked, and nothing trains. In the
full tier the lines of `TRAINED`, `ALONE` and `OWN` train too, each cut to a few small steps. All other
lines run as they stand, or smaller, as `reader.py` says for each program. Its list `NOT_HERE` has those
that no test runs.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pages
import pytest
from command import Command
from program import Program
from reader import NOT_HERE, Reader, make

import rlcore
from rlcore import LogProbGapError, StepResult
from rlcore.learning.invariants import check_first_step
from rlcore_cli.main import run
from rlcore_new.package import write_package
from rlcore_qwen.tiny import tiny

SHELL = pages.blocks("")
OF_CARDS = "docs/planning.md", "train --algo grpo --model"
"""Page and begin of the commands that test_cards.py runs, with the models that they name."""
SPOKEN = [
    (page, line) for page, line in pages.spoken() if page != OF_CARDS[0] or not line.startswith(OF_CARDS[1])
]
OWN = [(page, line) for page, line in SPOKEN if re.match(r"train .*\.py\b", line)]
"""The lines that run what a page has the reader write."""
MAKE = re.compile(r"^make ([a-z-]+)")
TARGETS = {target for page in pages.PAGES for one in pages.inline(page) for target in MAKE.findall(one)}
STANDS_FOR = {
    "--algo NAME": "--algo grpo",
    "--model NAME": "--model qwen3",
    "--trainer NAME": "--trainer megatron",
    "KIND NAME": "reward brevity",
    "RUN…": "RUN",
    "NAME": "brevity",
}
"""What a command of the text has in capitals."""
INSTALLED = re.compile(r"\b(brevity|nines|ascending|acme)\b")
"""Names of the reader's own packages. In the text, a bundled reward stands for them."""


def lines_of(page: str) -> list[str]:
    return [line for block in SHELL if block.page == page for line in pages.lines(block)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What stands for the models that the reader has."""
    folder = tmp_path_factory.mktemp("model")
    tiny(folder)
    config = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": 40960}
    (folder / "config.json").write_text(json.dumps(config))
    drafts = shutil.copytree(folder, folder.with_name("drafts")).rename(folder / "drafts")
    (drafts / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    classifier = folder / "classifier"
    classifier.mkdir()
    for file in folder.glob("*.json"):
        (classifier / file.name).write_text(file.read_text())
    config |= {"architectures": ["Qwen3ForSequenceClassification"], "num_labels": 1, "id2label": {"0": "x"}}
    (classifier / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps that kept all that the pages read. Their steps have other numbers."""
    folder = tmp_path_factory.mktemp("finished")
    small = ("--steps", "2", "--prompts-per-step", "8", "--group-size", "8", "--eval-prompts", "8")
    kept = ("--save-every", "2", "--save-rollouts-every", "1", "--run-dir", "run")
    command = Command("train", "--algo", "grpo", "--model", "qwen3", *small, *kept, cwd=folder)
    assert command.wait() == 0, command.stderr
    samples = folder / "run/samples"
    (samples / "eval-100.jsonl").symlink_to(samples / "eval-2.jsonl")
    shutil.copytree(folder / "run", folder / "second")
    return folder / "run"


@pytest.fixture
def reader(tmp_path: Path, model: Path, finished: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield Reader(tmp_path, model, finished)
    for name in set(sys.modules) - before:
        if INSTALLED.search(name.replace("_", " ")):
            del sys.modules[name]


DAILY = "README.md"
"""The page whose commands run in the daily tier, too."""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=() if page == DAILY else pytest.mark.full)
        for page in dict.fromkeys(block.page for block in SHELL)
    ],
)
def test_the_commands_of_a_page_run(page: str, reader: Reader, program: Program) -> None:
    """Line by line, from its first block to its last, in one folder."""
    for line in lines_of(page):
        reader.type(line)


TRAINED = {
    "docs/algorithms/sft.md": 4,
    "docs/debugging.md": 5,
    "docs/tutorials/first_generator.md": 1,
    "docs/tutorials/first_reward.md": 3,
    "docs/tutorials/first_run.md": 4,
}
"""Pages whose lines build on each other → how many of them train."""
ALONE = {
    "docs/algorithms/cispo.md": ("--algo cispo",),
    "docs/algorithms/grpo.md": ("--algo dr_grpo", "--algo dppo", "--algo kl_cov", "--algo pass_at_k"),
    "docs/algorithms/gspo.md": ("--algo gspo", "--algo luspo", "--algo gmpo", "--algo vespo"),
    "docs/algorithms/max_rl.md": ("--algo max_rl",),
    "docs/algorithms/reinforce.md": ("rloo", "opo", "gpg", "remax", "reinforce++-baseline"),
    "docs/algorithms/sapo.md": ("--algo sapo",),
    "docs/asynchrony.md": ("--correction tis", "--partial-rollouts --over-sample 1.5"),
    "docs/callbacks.md": ("--callback stop_at", "--callback reduce_lr"),
    "docs/corrections.md": (
        "--correction mis",
        "--correction tis --correction opsm",
        "--old-log-probs rollout",
    ),
    "docs/filters.md": ("--filter.overlong.mode penalty", "--filter staleness", "--filter prefer"),
    "docs/generators.md": ("--generator best_of_n", "--generator replay", "--generator own"),
    "docs/model_hooks.md": ("router",),
    "docs/models.md": ("seq_aux_loss",),
    "docs/rewards.md": ("--reward format", "--reward length_rank", "--rank-reward f1"),
    "docs/tutorials/agent.md": ("",),
    "plugins/algorithms/filters/README.md": ("--filter reward_range",),
    "plugins/algorithms/grpo/README.md": ("--loss.dual-clip 3",),
    "plugins/algorithms/reinforce/README.md": ("--no-advantage.baseline",),
    "plugins/model_hooks/freeze/README.md": ("experts",),
}
"""Page → what its lines have that train for something that no other test trains for."""


@pytest.fixture
def trainee(
    tmp_path_factory: pytest.TempPathFactory,
    model: Path,
    finished: Path,
    reader: Reader,
    monkeypatch: pytest.MonkeyPatch,
) -> Reader:
    """A reader whose lines train, each cut to a few small steps."""
    folder = tmp_path_factory.mktemp("trains")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")  # as in a venv
    return Reader(folder, model, finished, trains=True)


@pytest.mark.full
@pytest.mark.parametrize("page", TRAINED)
def test_the_lines_of_a_page_train(page: str, trainee: Reader) -> None:
    """As a reader types them: what one line writes, the next one reads."""
    for line in lines_of(page):
        trainee.type(line)
    assert trainee.trained == TRAINED[page]


@pytest.mark.full
@pytest.mark.parametrize(("page", "text"), [(page, text) for page in ALONE for text in ALONE[page]])
def test_a_line_of_a_page_trains(page: str, text: str, trainee: Reader) -> None:
    for line in lines_of(page):
        if text in line:
            trainee.type(line)
    assert trainee.trained


@pytest.mark.grid
@pytest.mark.parametrize(("page", "line"), SPOKEN)
def test_a_command_of_the_text_runs(page: str, line: str, reader: Reader, program: Program) -> None:
    for placeholder, name in STANDS_FOR.items():
        line = line.replace(placeholder, name)
    reader.rlcore(INSTALLED.sub("exact_match", line) if line.startswith("plugins ") else line)


@pytest.mark.full
@pytest.mark.parametrize(("page", "line"), OWN)
def test_what_a_page_writes_trains(page: str, line: str, trainee: Reader) -> None:
    trainee.rlcore(line)
    assert trainee.trained == 1


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_a_target_of_make_is_there(target: str) -> None:
    make([target])


def test_the_documentation_has_commands() -> None:
    assert len(SHELL) > 100
    assert len(SPOKEN) > 50


def test_nothing_is_left_out_that_no_page_names() -> None:
    """The list of what cannot run here stays short."""
    said = [line for block in SHELL for line in pages.lines(block)]
    assert not [name for name in NOT_HERE if not any(name in line for line in said)]


TEXTS = {(block.page, block.text.split()[0]): block.text for block in pages.blocks("text")}
"""What the pages show as printed, by its first word."""
DRAWN = {
    ("docs/architecture.md", "driver"): "a picture",
    ("docs/asynchrony.md", "┌───────────────"): "a picture",
    ("examples/search_agent/README.md", "ada="): "one response, with remarks",
    ("docs/migrating_from_prime_rl.md", "max_steps"): "prime-rl's: test_names.py checks its settings",
    ("docs/nodes.md", "podman"): "needs a container runtime: test_nodes.py reads the Containerfile",
    ("docs/nodes.md", "sbatch"): "eight GPUs a node: test_slurm.py runs the script on two small ones",
    ("docs/nodes.md", "ray"): "a Ray for jobs: test_cluster.py submits one",
}
"""What nothing here prints, and why."""


def test_a_run_ends_as_the_readme_shows(finished: Path) -> None:
    def shape(text: str) -> list[str]:
        return [re.sub(r"[\d.]+|(?<=folder: ).*|(?<=view ).*", "0", line) for line in text.splitlines()[-4:]]

    out = (finished.parent / "stdout.txt").read_text()
    assert shape(out) == shape(TEXTS["README.md", "completed:"])


def test_a_row_that_is_no_json_is_refused_as_its_page_shows(reader: Reader) -> None:
    good = '{"prompt": "12", "label": "12"}\n'
    bad = '{"prompt": "' + "1" * 75 + '" "label": "12"}\n'
    Path("train.jsonl").write_text(good * 4710 + bad)
    asked = ("--algo", "grpo", "--model", "qwen3", "--data", "train.jsonl", "--reward", "exact_match")
    command = Command("train", *asked, cwd=Path.cwd())
    assert command.wait(60) == 2
    said = command.stderr.splitlines()[-1].replace(f"{Path.cwd()}/", "")
    assert said == TEXTS["docs/data.md", "error:"].strip()


def test_doctor_looks_at_what_its_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    def names(text: str) -> list[str]:
        return re.findall(r"^(?:ok   |note |STOP ) ([\w ]+): ", text, re.MULTILINE)

    run(["doctor", "--cluster", "processes", "--engine", "local"])
    shown = names(TEXTS["docs/doctor.md", "ok"])
    found = [name for name in names(capsys.readouterr().out) if not name.startswith("engine ")]
    assert found == shown


@pytest.mark.parametrize("place", ["loss", "reward"])
def test_the_formulas_of_the_kl_term_name_settings(place: str, program: Program) -> None:
    (line,) = re.findall(rf"^--kl-place {place} .*", TEXTS["docs/kl.md", "--kl-place"], re.MULTILINE)
    flags = ["--kl-coef", "0.1", "--kl-place", place, *re.findall(r"--kl-unbiased", line)]
    assert run(["train", "--algo", "grpo", "--model", "qwen3", *flags, "--dry-run"]) == 0


def test_a_new_package_has_the_files_of_the_page(tmp_path: Path) -> None:
    write_package("reward", "brevity", "Apache-2.0", tmp_path / "made")
    names = re.findall(r"─ ([\w./]+)", TEXTS["docs/plugins.md", "rlcore-brevity/"])
    made = {file.relative_to(tmp_path / "made").as_posix() for file in (tmp_path / "made").rglob("*")}
    assert len(names) > 7
    assert not {*names} - made - {f"{Path(file).name}" for file in made} - {"src/rlcore_brevity/"}


def test_a_plugin_of_another_release_is_named_as_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Program
) -> None:
    info = tmp_path / "rlcore_brevity-1.0.dist-info"
    info.mkdir()
    about = "Metadata-Version: 2.1\nName: rlcore-brevity\nVersion: 1.0\nRequires-Dist: rlcore<0.5,>=0.4\n"
    (info / "METADATA").write_text(about)
    (info / "entry_points.txt").write_text("[rlcore]\nbrevity = rlcore_brevity.plugin\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr(rlcore, "__version__", "0.5.0")
    program("plugins")
    assert TEXTS["docs/versions.md", "broken:"].strip() in program.out + program.err


def test_a_gap_between_trainer_and_engine_is_told_as_the_page_shows() -> None:
    metrics = {"tokens": 160, "fresh": 160, "ppo_gap": 0, "kl_engine": 19.2, "kl_engine_k3": 0}
    result = StepResult(loss=0, metrics=metrics, grad_norm=1, lr=1e-3, finite=True)
    with pytest.raises(LogProbGapError) as refused:
        check_first_step(result, 0.31, dtype="fp32", comparable=True, max_gap=1e-4)
    assert TEXTS["docs/exactness.md", "Trainer"].strip() == str(refused.value)


SHOWN = {
    *(("README.md", "completed:"), ("docs/data.md", "error:"), ("docs/doctor.md", "ok")),
    *(("docs/kl.md", "--kl-place"), ("docs/plugins.md", "rlcore-brevity/")),
    *(("docs/versions.md", "broken:"), ("docs/exactness.md", "Trainer")),
}
"""What the tests above compare."""


def test_every_text_is_compared_or_listed() -> None:
    assert {*TEXTS} == SHOWN | {*DRAWN}
