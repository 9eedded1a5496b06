"""Seeds, stops, abort, spans and updates, without a server around them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from rlcore.weights.checksums import checksum
from rlcore_local import lean
from rlcore_local.requests import RequestError
from rlcore_local.testing import Local
from rlcore_local.weights import SharedTensor
from rlcore_testing.trainer_reference import hf_model

PROMPTS = [[5, 6, 7], [8, 9], [5, 6, 7], [30, 31, 32, 33, 34], [40] * 9]
LONG = {"max_new_tokens": 30, "ignore_eos": True}


def outputs(answers: dict[str, Any]) -> dict[str, list[int]]:
    return {rid: answer["output_ids"] for rid, answer in answers.items()}


def test_a_seeded_sample_is_the_same_alone_and_in_a_batch(model_path: Callable[..., Path]) -> None:
    def make(engine: Any, index: int) -> Any:
        return engine.sequence(str(index), PROMPTS[index], sampling_seed=index, **LONG)

    together = Local(model_path("qwen3"), max_batch=4)
    batch = outputs(together.run([make(together, i) for i in range(len(PROMPTS))]))
    for index in range(len(PROMPTS)):
        alone = Local(model_path("qwen3"))
        assert outputs(alone.run([make(alone, index)])) == {str(index): batch[str(index)]}
    assert batch["0"] != batch["2"], "the same prompt with another seed"


def test_equal_lists_begun_at_once_are_bit_equal(model_path: Callable[..., Path]) -> None:
    def run() -> Any:
        engine = Local(model_path("qwen3"), max_batch=2)
        assert engine.run([]) == {}
        return engine.run(
            [engine.sequence(str(i), prompt, sampling_seed=i, **LONG) for i, prompt in enumerate(PROMPTS)]
        )

    first, second = run(), run()
    assert first.keys() == second.keys() == {"0", "1", "2", "3", "4"}
    for rid in first:
        both = [one[rid]["meta_info"]["output_token_logprobs"] for one in (first, second)]
        assert both[0] == both[1], "bit-equal"


def test_the_cache_holds_what_its_rows_may_need_at_once_or_by_doubling(
    model_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    empty = lean.LeanDecoder._empty_cache

    def seen(self: lean.LeanDecoder, rows: int, positions: int) -> torch.Tensor:
        sizes.append(positions)
        return empty(self, rows, positions)

    def run(first_positions: int) -> dict[str, list[int]]:
        monkeypatch.setattr(lean, "FIRST_POSITIONS", first_positions)
        engine = Local(model_path("qwen3"), max_batch=4)
        made = [engine.sequence(str(i), prompt, sampling_seed=i, **LONG) for i, prompt in enumerate(PROMPTS)]
        sizes.clear()
        return outputs(engine.run(made))

    monkeypatch.setattr(lean.LeanDecoder, "_empty_cache", seen)
    at_once = run(512)
    assert sizes == [35, 39], "the longest prompt and its 30 tokens: of the first four, then of the fifth"
    assert run(8) == at_once
    assert sizes == [8, 16, 32, 35, 39]


def test_many_answers_are_handed_over_while_others_are_written(
    model_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Local(model_path("qwen3"), max_batch=100)
    handed: list[list[str]] = []
    monkeypatch.setattr(
        engine.scheduler, "deliver", lambda found: handed.append([one.rid for one, _ in found])
    )
    engine.run([engine.sequence(str(number), [5, 6], max_new_tokens=1) for number in range(100)])
    assert [len(rids) for rids in handed] == [64, 36]
    assert sorted((rid for rids in handed for rid in rids), key=int) == [str(number) for number in range(100)]


def test_a_stop_token_is_kept_in_the_ids(model_path: Callable[..., Path]) -> None:
    engine = Local(model_path("qwen3"))
    free = engine.run([engine.sequence("free", [5, 6], **LONG)])["free"]["output_ids"]
    stop = free[7]
    first = free.index(stop)
    answer = engine.run([engine.sequence("stopped", [5, 6], max_new_tokens=30, stop_token_ids=[stop])])[
        "stopped"
    ]
    assert answer["output_ids"] == free[: first + 1]
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    ignored = engine.run([engine.sequence("ignored", [5, 6], stop_token_ids=[stop], **LONG)])["ignored"]
    assert ignored["output_ids"] == free
    assert ignored["meta_info"]["finish_reason"] == {"type": "length", "length": 30}


def test_a_stop_string_is_cut_from_the_text_only(letters_path: Path) -> None:
    engine = Local(letters_path)
    tokenizer = AutoTokenizer.from_pretrained(letters_path)
    engine.scheduler.tokenizer = tokenizer
    free = engine.run([engine.sequence("free", [5, 6], **LONG)])["free"]
    text = tokenizer.decode(free["output_ids"], skip_special_tokens=True)
    assert isinstance(text, str)
    assert free["text"] == text
    stop = text[8:10]
    cut = text.index(stop)
    answer = engine.run([engine.sequence("cut", [5, 6], stop=["never", stop], **LONG)])["cut"]
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert answer["text"] == text[:cut]
    kept = tokenizer.decode(answer["output_ids"], skip_special_tokens=True)
    assert kept == text[: cut + len(stop)]
    whole = engine.run([engine.sequence("whole", [5, 6], stop=stop, no_stop_trim=True, **LONG)])["whole"]
    assert whole["text"] == kept


def test_without_trimming_the_last_token_stays_whole(letters_path: Path) -> None:
    """SGLang's `no_stop_trim` gives the text of all tokens, also where the stop ends inside the last one."""
    vocab = {"<pad>": 0, "<s>": 1, "</s>": 2} | {f"({i})": i for i in range(3, 96)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    tokenizer.decoder = decoders.Fuse()
    engine = Local(letters_path)
    engine.scheduler.tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")
    free = engine.run([engine.sequence("free", [5, 6], **LONG)])["free"]
    stop = f"({free['output_ids'][0]}"  # the first token without its last character
    whole = engine.run([engine.sequence("whole", [5, 6], stop=stop, no_stop_trim=True, **LONG)])["whole"]
    assert (whole["text"], whole["output_ids"]) == (f"{stop})", free["output_ids"][:1])
    cut = engine.run([engine.sequence("cut", [5, 6], stop=stop, **LONG)])["cut"]
    assert (cut["text"], cut["output_ids"]) == ("", free["output_ids"][:1])


def test_abort_gives_what_there_is(model_path: Callable[..., Path]) -> None:
    engine = Local(model_path("qwen3"), max_batch=2)
    sequences = [engine.sequence(str(i), PROMPTS[i], sampling_seed=i, **LONG) for i in range(3)]
    engine.run(sequences, steps=4)
    engine.scheduler.abort({"0", "2"})
    answers = engine.run([])
    assert [len(answers[rid]["output_ids"]) for rid in "012"] == [4, 30, 0]
    assert [answers[rid]["meta_info"]["finish_reason"]["type"] for rid in "012"] == [
        "abort",
        "length",
        "abort",
    ]
    alone = Local(model_path("qwen3"))
    one = alone.sequence("1", PROMPTS[1], sampling_seed=1, **LONG)
    assert alone.run([one])["1"]["output_ids"] == answers["1"]["output_ids"]


@pytest.mark.parametrize("flush", [True, False])
def test_an_update_in_the_middle_makes_two_spans(flush: bool, model_path: Callable[..., Path]) -> None:
    engine, second = Local(model_path("qwen3")), model_path("qwen3", 1)
    prompt = PROMPTS[3]
    engine.run([engine.sequence("a", prompt, **LONG)], steps=10)
    weights = engine.scheduler.weights
    with torch.inference_mode():
        engine.scheduler.change_weights(lambda: weights.update_from_disk(second), "7", flush)
    answer = engine.run([])["a"]
    meta, output = answer["meta_info"], answer["output_ids"]
    assert meta["weight_version"] == "7"
    assert meta["weight_versions"] == [
        {"version": "default", "start": 0, "end": 10},
        {"version": "7", "start": 10, "end": 30},
    ]
    got = torch.tensor([value for value, _, _ in meta["output_token_logprobs"]])
    with torch.no_grad():
        for path, part in ((model_path("qwen3"), slice(0, 10)), (second, slice(10, 30))):
            logits = hf_model(str(path))(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
            wanted = logits.log_softmax(-1).gather(1, torch.tensor(output)[:, None])[:, 0]
            same = torch.allclose(got[part], wanted[part], atol=1e-5, rtol=0)
            # Without a flush the second part looks at keys and values of the first weights.
            assert same == (part.start == 0 or flush)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "qwen3_moe"])
def test_an_update_from_a_file_changes_outputs_and_checksums(
    family: str, model_path: Callable[..., Path]
) -> None:
    engine, other = Local(model_path(family)), Local(model_path(family, 1))
    weights = engine.scheduler.weights
    file = model_path(family, 1) / "model.safetensors"
    tensors = load_file(file)
    before = weights.checksums()
    assert before.keys() == tensors.keys()
    size = int.from_bytes(file.read_bytes()[:8], "little")
    layout = layout_of(file.read_bytes()[8 : 8 + size], 8 + size)
    with torch.inference_mode():
        weights.update_from_file(file, layout)
    assert weights.checksums() == {name: checksum(one) for name, one in tensors.items()} != before
    prompt: dict[str, Any] = {"temperature": 0.0, **LONG}
    mine = engine.run([engine.sequence("a", [5, 6, 7], **prompt)])
    assert outputs(mine) == outputs(other.run([other.sequence("a", [5, 6, 7], **prompt)]))


def test_a_layer_for_multi_token_prediction_is_held_and_not_used(model_path: Callable[..., Path]) -> None:
    engine = Local(model_path("qwen3"))
    weights, own = engine.scheduler.weights, engine.scheduler.weights.tensors()
    held = {name: one.clone() for name, one in own.items()}
    layers = weights.model.config.num_hidden_layers
    layer = {f"model.layers.{layers}.eh_proj.weight": torch.randn(4, 8)}
    with pytest.raises(RequestError, match="not of this model"):
        weights.update_from_tensors(layer)
    weights.model.config.num_nextn_predict_layers = 1
    with torch.inference_mode():
        weights.update_from_tensors({**layer, "model.norm.weight": torch.ones(32)})
    expected = {**held, **layer, "model.norm.weight": torch.ones(32)}
    assert weights.checksums() == {name: checksum(one) for name, one in expected.items()}
    with pytest.raises(RequestError, match="not of this model"):
        weights.update_from_tensors({f"model.layers.{layers + 1}.eh_proj.weight": torch.randn(4, 8)})


def layout_of(header: bytes, start: int) -> list[SharedTensor]:
    """The layout of a safetensors file of fp32."""
    import json

    entries = json.loads(header)
    entries.pop("__metadata__", None)
    return [
        SharedTensor(name=name, dtype="float32", shape=one["shape"], offset=start + one["data_offsets"][0])
        for name, one in entries.items()
    ]


def test_a_refused_update_changes_nothing(model_path: Callable[..., Path], tmp_path: Path) -> None:
    weights = Local(model_path("qwen3")).scheduler.weights
    before = weights.checksums()
    with pytest.raises(RequestError, match="not of this model"):
        weights.update_from_disk(model_path("llama"))
    file = tmp_path / "weights"
    file.write_bytes(bytes(4096))
    norm = SharedTensor(name="model.norm.weight", dtype="float32", shape=[32], offset=0)
    for change, message in (
        ({"shape": [31]}, r"shape is \[31\]"),
        ({"offset": 4000}, "ends after the file"),
        ({"dtype": "int8"}, "has dtype 'int8'"),
    ):
        with pytest.raises(RequestError, match=message):
            weights.update_from_file(file, [norm._replace(**change)])
    assert weights.checksums() == before


def test_checksums_tell_values_dtype_and_shape_apart() -> None:
    one = torch.arange(6, dtype=torch.float32)
    sums = [one, one + 1, one.reshape(2, 3), one.bfloat16(), one.reshape(2, 3).t().contiguous()]
    assert len({checksum(each) for each in sums}) == 5
    assert checksum(one.reshape(2, 3).t()) == checksum(one.reshape(2, 3).t().contiguous())
    assert checksum(torch.tensor(1.0)) == checksum(torch.tensor(1.0))


def test_weights_leave_a_gpu_and_come_back_as_they_were(
    model_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Local(model_path("qwen3"))
    scheduler, weights = engine.scheduler, engine.scheduler.weights
    sums = weights.checksums()
    for tensor in weights._parameters.values():
        if not tensor.untyped_storage().resizable():  # mapped from the file, as it never is on a GPU
            tensor.data = tensor.data.clone()
    # the memory of a CPU is freed in the same way, if the scheduler takes it for a GPU's
    monkeypatch.setattr(weights, "device", torch.device("cuda"))
    scheduler.release(frozenset({"weights", "kv_cache"}))
    assert all(not tensor.untyped_storage().nbytes() for tensor in weights._parameters.values())
    with pytest.raises(RequestError, match="no memory until /resume_memory_occupation"):
        weights.checksums()
    with pytest.raises(RequestError, match="no memory until /resume_memory_occupation"):
        weights.update_from_tensors({})
    scheduler.reclaim(frozenset({"kv_cache"}))
    assert scheduler.is_held
    scheduler.reclaim(frozenset({"weights"}))
    assert not scheduler.is_held
    assert weights.checksums() == sums
