"""Both decoders compute what transformers computes, whatever else is in the batch."""

import functools
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers.models.qwen3_next import modeling_qwen3_next

from rlcore import ModelError, checksum
from rlcore_local.loading import ALIGNMENT
from rlcore_local.testing import Local
from rlcore_local.weights import Weights
from rlcore_testing.trainer_reference import hf_model
from rlcore_toolkit import cpu_kernels

PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15], [5, 6, 7], [20, 21], [30, 31, 32, 33], [8], [40] * 20]
PATHS = {
    "qwen2": "lean",
    "qwen3": "lean",
    "llama": "lean",
    "qwen3_moe": "generic",
    "qwen3_next": "generic",
    "glm_moe_dsa": "generic",
    "kimi_linear": "generic",
    "gemma2": "generic",
    "gpt2": "generic",
}


@torch.no_grad()
def expected(model: Any, prompt: list[int], output: list[int], temperature: float) -> torch.Tensor:
    """The log-probs of the prompt's and the output's tokens, but for the first; the output's are tempered."""
    tokens = torch.tensor([prompt + output])
    logits = model(tokens).logits[0, :-1]
    logits[len(prompt) - 1 :] /= temperature
    logprobs: torch.Tensor = logits.log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]
    return logprobs


def logprobs(entries: list[list[Any]]) -> list[float]:
    return [value for value, _, _ in entries]


def test_weights_begin_where_torch_puts_them_and_not_where_a_file_has_them(
    model_path: Callable[..., Path],
) -> None:
    path = model_path("qwen3")
    with safe_open(path / "model.safetensors", "pt") as file:
        mapped = [file.get_tensor(name) for name in file.keys()]  # noqa: SIM118  # no mapping
    assert any(tensor.data_ptr() % ALIGNMENT for tensor in mapped)
    weights = Weights(path, torch.float32, None)
    assert not any(tensor.data_ptr() % ALIGNMENT for tensor in weights.model.parameters())


def test_a_kernel_that_is_wrong_in_generation_alone_is_given_up(
    model_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "torch_recurrent_gated_delta_rule"
    own: Any = inspect.unwrap(vars(modeling_qwen3_next)[name])

    @functools.wraps(own)
    def kernel(*args: Any, **options: Any) -> tuple[torch.Tensor, Any]:
        values, state = own(*args, **options)
        return -values, state

    monkeypatch.setattr(modeling_qwen3_next, name, kernel)
    Weights(model_path("qwen3_next"), torch.float32, None)
    assert vars(modeling_qwen3_next)[name] is own
    assert "differs from transformers' own code" in capsys.readouterr().out


@pytest.mark.parametrize("family", PATHS)
def test_logprobs_and_scores_are_those_of_transformers(family: str, model_path: Callable[..., Path]) -> None:
    path = model_path(family)
    engine = Local(path, max_batch=3)
    assert engine.scheduler.weights.path == PATHS[family]
    answers = engine.run(
        [
            # Different lengths make rows end, move and join at different steps.
            engine.sequence(
                str(i), prompt, temperature=0.7, max_new_tokens=4 + 3 * i, sampling_seed=i, score_from=i % 2
            )
            if len(prompt) > 1
            else engine.sequence(str(i), prompt, temperature=0.7, max_new_tokens=4 + 3 * i)
            for i, prompt in enumerate(PROMPTS)
        ]
    )
    model = hf_model(str(path))
    for i, prompt in enumerate(PROMPTS):
        meta, output = answers[str(i)]["meta_info"], answers[str(i)]["output_ids"]
        wanted = expected(model, prompt, output, 0.7)
        got = torch.tensor(logprobs(meta["output_token_logprobs"]))
        torch.testing.assert_close(got, wanted[len(prompt) - 1 :], atol=1e-5, rtol=0)
        assert [token for _, token, _ in meta["output_token_logprobs"]] == output
        if len(prompt) > 1:
            scores = meta["input_token_logprobs"]
            assert [token for _, token, _ in scores] == prompt[i % 2 :]
            assert scores[0][0] is None
            wanted_scores = wanted[i % 2 : len(prompt) - 1]
            torch.testing.assert_close(torch.tensor(logprobs(scores[1:])), wanted_scores, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", PATHS)
def test_samples_of_one_prompt_alone_do_not_share_what_each_goes_on_with(
    family: str, model_path: Callable[..., Path]
) -> None:
    path, prompt = model_path(family), PROMPTS[0]
    engine = Local(path)
    answers = engine.run(
        [engine.sequence(str(seed), prompt, max_new_tokens=8, sampling_seed=seed) for seed in range(4)]
    )
    model = hf_model(str(path))
    outputs = [answers[str(seed)]["output_ids"] for seed in range(4)]
    assert len(set(map(tuple, outputs))) > 1
    for seed, output in enumerate(outputs):
        got = torch.tensor(logprobs(answers[str(seed)]["meta_info"]["output_token_logprobs"]))
        wanted = expected(model, prompt, output, 1.0)[len(prompt) - 1 :]
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", PATHS)
def test_greedy_is_that_of_generate(family: str, model_path: Callable[..., Path]) -> None:
    path = model_path(family)
    engine = Local(path, max_batch=3)
    answers = engine.run([engine.sequence(str(i), one, temperature=0.0) for i, one in enumerate(PROMPTS)])
    model = hf_model(str(path))
    for i, prompt in enumerate(PROMPTS):
        ids = torch.tensor([prompt])
        wanted = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12)
        assert answers[str(i)]["output_ids"] == wanted[0, len(prompt) :].tolist()


def test_bf16_is_near_transformers_bf16(model_path: Callable[..., Path]) -> None:
    path = model_path("qwen3")
    engine = Local(path, dtype=torch.bfloat16)
    answers = engine.run([engine.sequence(str(i), one, max_new_tokens=20) for i, one in enumerate(PROMPTS)])
    model = Weights(path, torch.bfloat16, None).model
    gaps = []
    for i, prompt in enumerate(PROMPTS):
        output = answers[str(i)]["output_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1].float()
        wanted = logits.log_softmax(-1).gather(1, torch.tensor(output)[:, None])[:, 0]
        got = torch.tensor(logprobs(answers[str(i)]["meta_info"]["output_token_logprobs"]))
        gaps.append((got - wanted).abs())
    assert torch.cat(gaps).mean() < 0.02


def test_samples_of_one_prompt_share_its_prefill(
    model_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Local(model_path("qwen3"))
    decoder = engine.scheduler.weights.decoder
    seen: list[list[tuple[int, int]]] = []
    prefill = decoder.prefill

    def watched(prompts: Any) -> Any:
        seen.append([(len(one.tokens), one.copies) for one in prompts])
        return prefill(prompts)

    monkeypatch.setattr(decoder, "prefill", watched)
    prompts = [[5, 6, 7], [8, 9, 10, 11], [5, 6, 7], [5, 6, 7]]
    engine.run([engine.sequence(str(i), prompt) for i, prompt in enumerate(prompts)])
    assert seen == [[(3, 3), (4, 1)]]


def test_a_directory_that_cannot_be_served_is_refused_in_one_sentence(
    tmp_path: Path, model_path: Callable[..., Path]
) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json\.$"):
        Weights(tmp_path, torch.float32, None)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    with pytest.raises(ModelError, match="cannot serve model type 't5'"):
        Weights(tmp_path, torch.float32, None)
    (tmp_path / "config.json").write_text((model_path("qwen3") / "config.json").read_text())
    with pytest.raises(ModelError, match="weights cannot be loaded"):
        Weights(tmp_path, torch.float32, None)
    with pytest.raises(ModelError, match="--context-length 300 is more"):
        Weights(model_path("qwen3"), torch.float32, 300)


def test_recurrent_models_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    with pytest.raises(ModelError, match="keep keys and values"):
        Weights(tmp_path, torch.float32, None)


@pytest.mark.parametrize("columns", [True, False])
def test_weights_are_the_same_in_either_layout(
    columns: bool, model_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_kernels, "_COLUMNS", columns)
    path = model_path("qwen3")
    weights = Weights(path, torch.float32, None)
    down = weights.tensors()["model.layers.0.mlp.down_proj.weight"]
    assert down.t().is_contiguous() == columns
    stored = load_file(path / "model.safetensors")
    weights.update_from_tensors({name: -one for name, one in stored.items()})
    assert weights.checksums() == {name: checksum(-stored[name]) for name in weights.tensors()}
