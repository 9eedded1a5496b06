"""`rlcore convert`: the trained policy as a directory that transformers loads, whatever layout trained it."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from command import Run
from layouts import STEPS, Layouts
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlcore_cli.main import run as rlcore


@pytest.mark.timeout(600)
def test_converted_model_answers_as_the_run_did(layouts: Layouts, run: Run, tmp_path: Path) -> None:
    folder, out = shutil.copytree(layouts.run("tp2_sp"), tmp_path / "run"), tmp_path / "out"
    settings = folder / "run.toml"
    settings.write_text(re.sub(r'(data|eval_path) = ".*"', r'\1 = "/gone.jsonl"', settings.read_text()))
    run("convert", str(folder / "checkpoints" / str(STEPS)), str(out))
    before, after = (load_file(path / "model.safetensors") for path in (layouts.model, out))
    assert {name: tensor.shape for name, tensor in after.items()} == {n: t.shape for n, t in before.items()}
    assert all(not torch.equal(before[name], after[name]) for name in before), "every weight was trained"

    run("export", str(folder), str(tmp_path / "export"))
    names = sorted(file.name for file in out.iterdir())
    assert names == sorted(file.name for file in (tmp_path / "export").iterdir())
    assert all((tmp_path / "export" / name).read_bytes() == (out / name).read_bytes() for name in names)

    tokenizer = AutoTokenizer.from_pretrained(out)
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    samples = (folder / "samples" / f"eval-{STEPS}.jsonl").read_text().splitlines()
    assert samples
    for line in samples:
        sample = json.loads(line)
        prompt = tokenizer.apply_chat_template(
            sample["prompt"], add_generation_prompt=True, return_dict=False
        )
        ids = torch.tensor([prompt])
        answer = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
        text = tokenizer.decode(answer[0, ids.shape[1] :], skip_special_tokens=True)
        assert text == sample["response"]


@pytest.mark.timeout(600)
def test_refused_where_there_is_no_checkpoint_or_out_exists(
    layouts: Layouts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = layouts.run("tp2_sp")
    checkpoint = folder / "checkpoints" / str(STEPS)
    out = tmp_path / "out"
    for source in (tmp_path, folder, folder / "checkpoints" / "7", folder / "model", checkpoint / "policy"):
        assert rlcore(["convert", str(source), str(out)]) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: {source}: expected RUN/checkpoints/N of a run")
        assert not out.exists()
    out.mkdir()
    assert rlcore(["convert", str(checkpoint), str(out)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert str(out) in line
    assert "exists" in line
    assert not any(out.iterdir())
