"""`rlcore import slime`, and the hints that come of its table."""

import sys
import tomllib
from pathlib import Path

import pytest
from program import Program
from refusals import Case, cases, sentence

FLAGS = ["--rollout-batch-size", "8", "--rollout-max-response-len", "512", "--rm-type", "math"]


def test_the_toml_goes_to_stdout_and_the_table_to_stderr(program: Program) -> None:
    out = program("import", "slime", *FLAGS, "--use-distributed-post", "--group-rm", "--spec", "own", "f")
    err = program.err
    found = tomllib.loads(out)
    assert (found["prompts_per_step"], found["max_response_tokens"], found["reward"]) == (8, 512, ["math"])
    for flag, verdict in {
        "--rollout-batch-size 8": "translated",
        "--group-rm": "implied",
        "--use-distributed-post": "no meaning",
        "--spec own f": "not possible",
    }.items():
        assert any(flag in line and verdict in line for line in err.splitlines()), flag
    assert "3 translated, 1 no meaning, 1 implied, 2 not possible" in err


def test_flags_of_unknown_variables_are_left_out_and_the_variables_named(
    tmp_path: Path, program: Program
) -> None:
    script = tmp_path / "run.sh"
    files = "--hf-checkpoint ${BASE}/m --prompt-data ${BASE}/d --lr-warmup-iters $(steps $OWN)"
    script.write_text(f"ARGS=(\n --lr 1e-5\n --seed $SEED\n {files}\n)\n")
    out = program("import", "slime", str(script))
    err = program.err
    found = tomllib.loads(out)
    assert found["lr"] == 1e-5
    assert not {"model", "data"} & set(found)
    assert "not known depends on BASE" in " ".join(err.split())
    assert "not known a program computes it; give --lr-warmup-iters behind" in " ".join(err.split())
    assert err.endswith("--seed, --hf-checkpoint, --prompt-data. Add --var SEED=VALUE --var BASE=VALUE.\n")


def test_a_script_is_written_to_a_file_and_flags_override_it(tmp_path: Path, program: Program) -> None:
    script, out = tmp_path / "run.sh", tmp_path / "run.toml"
    script.write_text("ARGS=(\n --lr 1e-5\n --rollout-stop-token-ids 1 2\n --seed $SEED\n)\n")
    asked = ["import", "slime", str(script), "--var", "SEED=3", "-o", str(out), "--lr", "2e-6", "--colocate"]
    program(*asked)
    found = tomllib.loads(out.read_text())
    assert (found["lr"], found["stop_token_ids"], found["seed"]) == (2e-6, [1, 2], 3)
    assert program.out == ""


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--wandb-project", "--wandb-project: `--tracker.wandb.project`"),
        ("--tis-clip", "--tis-clip: `--correction.tis.high`"),
        ("--balance-data", "--balance-data: implied: samples are dealt out"),
    ],
)
def test_a_flag_alone_is_a_question(flag: str, said: str, program: Program) -> None:
    assert program("import", "slime", flag).startswith(said)


def test_an_unknown_flag_is_named_with_a_suggestion(program: Program) -> None:
    out = program("import", "slime", "--rollout-bach-size", "8", "--seed", "3", code=2)
    err = program.err
    line, sentence = (one for one in err.splitlines() if "--rollout-bach-size" in one)
    assert "unknown" in line
    assert "Did you mean '--rollout-batch-size'?" in line
    assert "--ignore-unknown" in sentence
    assert out == ""
    out = program("import", "slime", "--rollout-bach-size", "8", "--seed", "3", "--ignore-unknown")
    assert tomllib.loads(out)["seed"] == 3


def test_what_slime_does_without_a_flag_is_said(program: Program) -> None:
    out = program("import", "slime", "--rm-type", "math", "--seed", "3")
    err = program.err
    told = " ".join(err.split())
    assert "--n-samples-per-prompt 1 not possible slime's default; a group of one has no advantage" in told
    assert "slime's defaults and what follows from the flags: algo" in told
    assert "shuffle = false" in told
    assert "seed = " not in told
    assert tomllib.loads(out)["shuffle"] is False


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path: Path, program: Program) -> None:
    program("import", "slime", "--seed", "3", "-o", str(tmp_path / "new" / "run.toml"))
    (tmp_path / "file").write_text("")
    program("import", "slime", "--seed", "3", "-o", str(tmp_path / "file" / "run.toml"), code=2)
    assert "could not be written" in program.err


@cases("import: arguments")
def test_what_cannot_be_is_one_sentence(case: Case, program: Program) -> None:
    out = program("import", *case.given, code=2)
    err = program.err
    assert out == ""
    case.check(sentence(err))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "found nothing to import"),
        ([__file__], "test_import_command.py: found a Python program, expected the shell script that starts"),
        ([sys.executable], "found no text, expected a shell script."),
    ],
)
def test_what_is_no_script(args: list[str], said: str, program: Program) -> None:
    assert said in program.refused("import", "slime", *args)


HINTS = {
    "--rollout-batch-size": "Did you mean '--prompts-per-step'?",
    "--n-samples-per-prompt": "Did you mean '--group-size'?",
    "--tensor-model-parallel-size": "Did you mean '--megatron.tensor-model-parallel-size'?",
    "--rollout-max-response-len": "Did you mean '--max-response-tokens'?",
    "--num-rollout": "Did you mean '--steps'?",
    "--global-batch-size": "Did you mean '--minibatches' (prompts times group size, divided by it)?",
    "--decoder-last-pipeline-num-layers": "Did you mean '--megatron.num-layers-in-last-pipeline-stage'?",
    "--retro-num-retrieved-chunks": "`rlcore import slime --retro-num-retrieved-chunks` tells",
    "--mask-stale-token": "Did you mean '--mask-stale-tokens'?",
    "--sglang-tp": "Did you mean '--sglang.tp'?",
    "--custom-tis-function-path": "`rlcore import slime --custom-tis-function-path` tells",
}


@pytest.mark.parametrize("flag", HINTS)
def test_a_flag_of_slime_typed_to_train_is_recognized(flag: str, program: Program) -> None:
    assert HINTS[flag] in program.refused("train", "--algo", "grpo", "--model", "qwen3", flag, "2")


def test_a_flag_of_slime_typed_to_eval_is_recognized(program: Program) -> None:
    said = program.refused("eval", "--model", "qwen3", "--task", "copy", "--retro-add-retriever")
    assert "`rlcore import slime --retro-add-retriever` tells" in said


OTHERS = {
    "--num_generations": "Did you mean '--group-size' (8 in both; some recipes have 16)?",
    "--per-device-train-batch-size=2": "Did you mean '--prompts-per-step' (times the devices, over",
    "--beta": "Did you mean '--kl-coef' (estimator k3 in both; of DPO: --loss.beta)?",
    "--num_iterations": "TRL has it; `rlcore import trl --num_iterations` tells what stands for it here.",
    "actor_rollout_ref.rollout.n=8": "Did you mean '--group-size'?",
    "data.gen_batch_size=8": "verl has it; `rlcore import verl data.gen_batch_size` tells what stands for it",
    "--loss-type": "`rlcore import slime --loss-type` tells what stands for it here. TRL has it; `rlcore",
    "--orchestrator.group-size": "prime-rl has it; here it is --group-size (1 there, 8 here).",
}


@pytest.mark.parametrize("word", OTHERS)
def test_a_setting_of_another_framework_is_answered_with_ours(word: str, program: Program) -> None:
    value = [] if "=" in word else ["2"]
    assert OTHERS[word] in program.refused("train", "--algo", "grpo", "--model", "qwen3", word, *value)


def test_a_file_of_another_framework_is_answered_with_ours(tmp_path: Path, program: Program) -> None:
    (tmp_path / "rl.toml").write_text("[orchestrator]\nbatch_size = 512\n")
    file = str(tmp_path / "rl.toml")
    said = program.refused("train", "--algo", "grpo", "--model", "qwen3", "--config", file)
    assert "prime-rl has it; here it is --prompts-per-step (over group_size)." in said
