"""The conformance suite of model bridges: subclass `BridgeConformance` in a test of the bridge's package.

    class TestAcme(BridgeConformance):
        bridge = Part(name="acme", factory="acme_bridge:AcmeBridge")
        config_class = AcmeConfig
        axes = {"rope": ROPES[:2], "tied": TIED, "heads": HEADS}

It makes tiny checkpoints with transformers' own classes, every value of them random, and holds the bridge to
what transformers computes with them: fp32, on the CPU, real gloo ranks. Needs pytest.
"""

import contextlib
import copy
import itertools
import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PretrainedConfig

from rlcore import AdapterSpec, Part, TrainBatch
from rlcore_machine import HeldPort
from rlcore_megatron.fields import RECOMPUTE
from rlcore_megatron.testing.adapters import adapter_gradients, split_off
from rlcore_megatron.testing.family import config_class, has_experts, published, shrunk
from rlcore_megatron.testing.grid import HEADS, ROPES, TIED, Choice, pairwise
from rlcore_testing.checkpoints import (
    CARRIED,
    HfReference,
    index_of,
    make_checkpoint,
    same_shape_pairs,
    tensors_of,
)
from rlcore_testing.conformance import Conformance, Subject
from rlcore_testing.ranks import run_ranks

__all__ = ["EXPERT_LAYOUTS", "HEADS", "LAYOUTS", "ROPES", "TIED", "BridgeConformance", "Choice", "Models"]

RANKS = "rlcore_megatron.testing.bridge_ranks"

TOLERANCE = 1e-5
"""Largest difference of a logit; of a gradient, beside its largest value; of losses and norms, relative."""
TP2, PP2 = {"tensor_model_parallel_size": "2"}, {"pipeline_model_parallel_size": "2"}
SP = {"sequence_parallel": "true"}
UNEVEN = PP2 | {"num_layers_in_last_pipeline_stage": "1"}
VPP2 = PP2 | {"virtual_pipeline_model_parallel_size": "2"}
CP2 = {"context_parallel_size": "2"}
LAYOUTS: Mapping[str, tuple[int, Choice]] = {
    "TP2 PP2 SP": (4, TP2 | PP2 | SP),
    "TP2 CP2 SP recomputed": (4, TP2 | CP2 | SP | RECOMPUTE),
    "TP2": (2, TP2),
    "TP2 SP": (2, TP2 | SP),
    "PP2 uneven": (2, UNEVEN),
    "VPP2": (2, VPP2),
    "CP2": (2, CP2),
}
"""Those that combine the most come first."""
EP2, ETP2 = {"expert_model_parallel_size": "2"}, {"expert_tensor_parallel_size": "2"}
EXPERT_LAYOUTS: Mapping[str, tuple[int, Choice]] = {
    "TP2 SP EP2 recomputed": (2, TP2 | SP | EP2 | RECOMPUTE),
    "VPP2": (2, VPP2),
    "EP2": (2, EP2),
    "TP2 SP": (2, TP2 | SP),
    "TP2 SP ETP2": (2, TP2 | SP | ETP2),
    "CP2 EP2": (2, CP2 | EP2),
    "PP2 uneven": (2, UNEVEN),
}
"""For families with experts, whose tensor parallelism needs sequence parallelism. In the same order."""

Answered = Sequence[tuple[Sequence[int], Sequence[float]]]
"""The tokens that were sampled for each prompt, and their log-probs at temperature 1."""

_MODELS: Any = AutoModelForCausalLM  # transformers leaves much of it untyped


class Models:
    """Checkpoints under `root`, and what transformers computes with each."""

    def __init__(self, root: Path, configs: Mapping[str, PretrainedConfig]) -> None:
        self.root = root / "models"
        made = root / "made"  # the gradients are saved beside the models
        self.references: dict[str, HfReference] = {}
        self.root.mkdir()
        for seed, (name, config) in enumerate(configs.items()):
            self.references[name] = make_checkpoint(made / name, config, seed)
            (made / name).rename(self.root / name)
        self.inputs = {name: (reference.ids, reference.mask) for name, reference in self.references.items()}
        self.adapters: dict[str, tuple[Path, AdapterSpec]] = {}

    def with_adapters(self) -> Self:
        """Make a base and an adapter of each model, which together are that model."""
        for name in self.references:
            base, adapter = (self.root.with_name(f"{name} {kind}") for kind in ("base", "adapter"))
            self.adapters[name] = base, split_off(self.root / name, base, adapter)
        return self


class BridgeConformance(Conformance):
    """What a bridge is held to. A subclass sets `bridge`, `config_class`, `axes`; the rest has defaults."""

    bridge: ClassVar[Part]
    config_class: ClassVar[type[PretrainedConfig]]
    shape: ClassVar[Choice] = {
        "vocab_size": 99,
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "intermediate_size": 80,
        "max_position_embeddings": 64,
        "eos_token_id": 1,
        "pad_token_id": None,  # transformers gives the embedding of padding no gradient
    }
    """Fields of every config. The vocabulary is odd, so that tensor parallelism pads it."""
    axes: ClassVar[Mapping[str, Sequence[Choice]]] = {"tied": TIED, "heads": HEADS, "rope": ROPES}
    """Fields that vary: the grid holds each pair of choices."""
    layouts: ClassVar[Mapping[str, tuple[int, Choice]]] = LAYOUTS
    """Ranks and `--megatron` fields of each layout."""
    layout_models: ClassVar[Mapping[str, Choice]] = {
        "untied": {**HEADS[0], "num_hidden_layers": 4, "tie_word_embeddings": False},
        "tied": {**HEADS[1], "num_hidden_layers": 4, "tie_word_embeddings": True},
    }
    """Fields of the models that every layout is tried with."""
    refused: ClassVar[Mapping[str, Choice]] = {}
    """What the refusal says → the fields of config.json that are refused, over those of the first config."""
    most: ClassVar[int | None] = None
    """How many configs of the grid, and how many layouts, are tried: the first ones. None: all."""

    @classmethod
    def of(cls, subject: Subject) -> type[Self]:
        """With a tiny model of each size that the family's record names, or of its preset."""
        configs = published(subject.record).values()
        models = list({json.dumps(shrunk(config)): config for config in configs}.values())
        return cls.with_values(
            bridge=subject.part,
            config_class=config_class(models[0]),
            shape={"pad_token_id": None},
            axes={"size": [shrunk(config) for config in models]},
            layouts=EXPERT_LAYOUTS if has_experts(models[0]) else LAYOUTS,
            layout_models={"four layers": shrunk(models[0], layers=4)},
        )

    @classmethod
    def config(cls, **fields: Any) -> PretrainedConfig:
        """A config of the family: `shape` with `fields` above it."""
        return cls.config_class(
            **copy.deepcopy({**cls.shape, **fields})
        )  # some configs write into their fields

    @staticmethod
    def answers(path: Path, prompts: Sequence[Sequence[int]]) -> Answered:
        """How an engine samples: the bridge's log-probs are held to the engine's. A suite may name none."""
        pytest.skip("the suite names no engine")

    @pytest.fixture(scope="class")
    @classmethod
    def grid(cls, tmp_path_factory: pytest.TempPathFactory) -> Models:
        """The models of the grid."""
        few = itertools.islice(pairwise(cls.axes), cls.most)
        configs = {name: cls.config(**fields) for name, fields in few}
        return Models(tmp_path_factory.mktemp("grid"), configs)

    @pytest.fixture(scope="class")
    @classmethod
    def alone(cls, grid: Models) -> Mapping[str, Mapping[str, Any]]:
        """What one rank makes of the grid."""
        return cls.measure(grid, [{}], 1)[0]

    @pytest.fixture(scope="class")
    @classmethod
    def laid_out(cls, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
        """What each layout, and one rank as "alone", makes of `layout_models`."""
        configs = {name: cls.config(**fields) for name, fields in cls.layout_models.items()}
        models = Models(tmp_path_factory.mktemp("layouts"), configs).with_adapters()
        layouts = {"alone": (1, {}), **dict(itertools.islice(cls.layouts.items(), cls.most))}
        results: dict[str, Any] = {"models": models}
        for ranks in sorted({ranks for ranks, _ in layouts.values()}):
            names = [name for name, (count, _) in layouts.items() if count == ranks]
            measured = cls.measure(models, [layouts[name][1] for name in names], ranks)
            results.update(zip(names, measured, strict=True))
        return results

    @classmethod
    def measure(
        cls, models: Models, layouts: Sequence[Choice], ranks: int
    ) -> list[Mapping[str, Mapping[str, Any]]]:
        """What the last rank found, for each layout and by model."""
        with contextlib.ExitStack() as held:
            ports = [held.enter_context(HeldPort()).number for _ in layouts[1:]]
            call = (cls.bridge, models.root, models.inputs, layouts, ports, models.adapters)
            return list(run_ranks(f"{RANKS}:measure", ranks, *call)[-1])

    def test_logits_are_those_of_transformers(self, grid: Models, alone: Mapping[str, Any]) -> None:
        for name, reference in grid.references.items():
            assert reference.logits.std() >= 1.0, f"{name}: small logits hide errors"
            for way, logits in zip(("packed", "padded"), alone[name]["logits"], strict=True):
                assert _apart(logits, reference.logits) <= TOLERANCE, (name, way)

    def test_gradients_are_those_of_transformers(self, grid: Models, alone: Mapping[str, Any]) -> None:
        for name, reference in grid.references.items():
            assert alone[name]["loss"] == pytest.approx(2 * reference.loss, rel=TOLERANCE), name
            for key, gradient in alone[name]["gradients"].items():
                expected = 2 * reference.gradients[key]  # of the packed and the padded pass
                bound = TOLERANCE * (1 + float(expected.abs().max()))
                assert _apart(gradient, expected) <= bound, (name, key)

    def test_published_names_and_values_are_those_on_disk(
        self, grid: Models, alone: Mapping[str, Any]
    ) -> None:
        for name in grid.references:
            _assert_equal(alone[name]["weights"], tensors_of(grid.root / name), name)

    def test_each_tensor_is_read_from_its_own_place(self, grid: Models, tmp_path: Path) -> None:
        # of an indexer that chooses all keys no logits tell anything
        chosen = {name: _config(grid.root / name).get("index_topk", 0) for name in grid.references}
        name = max(chosen, key=lambda name: (len(index_of(grid.root / name)), -chosen[name]))
        reference, source = grid.references[name], tensors_of(grid.root / name)
        pairs = same_shape_pairs(source)
        for number, (first, second) in enumerate(pairs):
            path = tmp_path / str(number)
            path.mkdir()
            shutil.copy(grid.root / name / "config.json", path)
            swapped = {**source, first: source[second], second: source[first]}
            save_file(swapped, path / "model.safetensors", metadata={"format": "pt"})
        inputs = {str(number): (reference.ids, reference.mask) for number in range(len(pairs))}
        logits = run_ranks(f"{RANKS}:packed_logits", 1, self.bridge, tmp_path, inputs, "fp32")[0]
        differences = [_apart(logits[str(number)], reference.logits) for number in range(len(pairs))]
        unseen = [pair for pair, apart in zip(pairs, differences, strict=True) if apart <= 10 * TOLERANCE]
        assert pairs
        assert not unseen, f"{unseen} swapped without a difference"

    def test_bf16_is_as_near_as_that_of_transformers(self, grid: Models) -> None:
        logits = run_ranks(f"{RANKS}:packed_logits", 1, self.bridge, grid.root, grid.inputs, "bf16")[0]
        for name, reference in grid.references.items():
            theirs = typical(reference.half - reference.logits)
            ours = typical(logits[name] - reference.logits)
            assert 0 < ours <= 2 * theirs, (name, ours, theirs)

    def test_a_saved_directory_is_the_source_again(self, grid: Models, tmp_path: Path) -> None:
        run_ranks(f"{RANKS}:save_again", 1, self.bridge, grid.root, tmp_path)
        for name in grid.references:
            source, out = grid.root / name, tmp_path / name
            written = tensors_of(out)
            _assert_equal(written, tensors_of(source), name)
            assert index_of(out).keys() == written.keys()
            assert set(index_of(out).values()) == {file.name for file in out.glob("*.safetensors")}
            for file in CARRIED:
                assert (out / file).read_bytes() == (source / file).read_bytes(), file
            assert _config(out) == _config(source)
            model, info = _MODELS.from_pretrained(out, output_loading_info=True)
            assert not info["missing_keys"]
            assert not info["unexpected_keys"]
            assert model.dtype == torch.float32
        assert not list(tmp_path.glob("*.partial")), "no half-written directory stays"

    def test_log_probs_are_those_of_an_engine(self, grid: Models) -> None:
        sampled = {
            name: sample(self.answers, grid.root / name, reference.ids, reference.mask)
            for name, reference in grid.references.items()
        }
        batches = {name: batch for name, (batch, _) in sampled.items()}
        log_probs = run_ranks(f"{RANKS}:log_probs", 1, self.bridge, grid.root, batches)[0]
        for name, (_, expected) in sampled.items():
            assert _apart(log_probs[name], expected) <= TOLERANCE, name

    def test_layouts_agree_with_one_rank(self, laid_out: Mapping[str, Any]) -> None:
        for layout in itertools.islice(self.layouts, self.most):
            for name, alone in laid_out["alone"].items():
                divided = laid_out[layout][name]
                where = f"{layout}, {name}"
                for logits, expected in zip(divided["logits"], alone["logits"], strict=True):
                    assert _apart(logits, expected) <= TOLERANCE * float(expected.abs().max()), where
                assert divided["loss"] == pytest.approx(alone["loss"], rel=TOLERANCE), where
                norms = _norm(divided["gradients"]), _norm(alone["gradients"])
                assert norms[0] == pytest.approx(norms[1], rel=TOLERANCE), where
                for key, expected in alone["gradients"].items():
                    bound = TOLERANCE * (1 + float(expected.abs().max()))
                    assert _apart(divided["gradients"][key], expected) <= bound, (where, key)
                _assert_equal(divided["weights"], alone["weights"], where)

    def test_a_prompt_that_is_computed_once_gives_the_same_gradients(self, grid: Models) -> None:
        found = run_ranks(f"{RANKS}:shared_prompts", 1, self.bridge, grid.root, list(grid.references))[0]
        for name, (shared, apart) in found.items():
            assert shared[2] < apart[2], f"{name}: no prompt was computed once"
            assert _apart(shared[0], apart[0]) <= TOLERANCE, name
            for key, expected in apart[1].items():
                bound = TOLERANCE * (1e-2 + float(expected.abs().max()))
                assert _apart(shared[1][key], expected) <= bound, (name, key)

    def test_an_adapter_is_that_of_peft_in_every_layout(self, laid_out: Mapping[str, Any]) -> None:
        models: Models = laid_out["models"]
        for layout in ("alone", *itertools.islice(self.layouts, self.most)):
            for name, (_, spec) in models.adapters.items():
                adapted, reference = laid_out[layout][name]["adapted"], models.references[name]
                where = f"{layout}, {name}"
                for logits in adapted["logits"]:
                    bound = TOLERANCE * (1 + float(reference.logits.abs().max()))
                    assert _apart(logits, reference.logits) <= bound, where
                whole = {key: 2 * gradient for key, gradient in reference.gradients.items()}
                expected = adapter_gradients(spec, whole)
                assert adapted["gradients"].keys() == expected.keys(), where
                for key, gradient in expected.items():
                    bound = TOLERANCE * (1 + float(gradient.abs().max()))
                    assert _apart(adapted["gradients"][key], gradient) <= bound, (where, key)
                for key, weight in laid_out["alone"][name]["weights"].items():
                    assert _apart(adapted["weights"][key], weight) <= 1e-6, (where, key)
                _assert_equal(adapted["adapter"], tensors_of(Path(spec.source)), where)

    def test_what_would_be_computed_wrongly_is_refused(self, grid: Models, tmp_path: Path) -> None:
        if not self.refused:
            pytest.skip("the suite names nothing that the bridge refuses")
        source = grid.root / next(iter(grid.references))
        paths = []
        for number, fields in enumerate(self.refused.values()):
            paths.append(shutil.copytree(source, tmp_path / str(number)))
            config = {**_config(source), **fields}
            (paths[-1] / "config.json").write_text(json.dumps(config))
        messages = run_ranks(f"{RANKS}:refusals", 1, self.bridge, paths)[0]
        for expected, message in zip(self.refused, messages, strict=True):
            assert message.startswith(("ModelError", "ConfigError")), (expected, message)
            assert expected in message, (expected, message)


def sample(
    answers: Callable[[Path, Sequence[Sequence[int]]], Answered], path: Path, ids: Tensor, mask: Tensor
) -> tuple[TrainBatch, Tensor]:
    """What an engine answers to each sequence, and its log-probs of the response tokens."""
    prompts = [row[real].tolist() for row, real in zip(ids, mask, strict=True)]
    answered = answers(path, prompts)
    texts = [[*prompt, *response] for prompt, (response, _) in zip(prompts, answered, strict=True)]
    batch = TrainBatch(
        tokens=torch.tensor([token for text in texts for token in text]),
        prompt_lengths=torch.tensor([len(prompt) for prompt in prompts]),
        response_lengths=torch.tensor([len(response) for response, _ in answered]),
    )
    return batch, torch.tensor([value for _, log_probs in answered for value in log_probs])


def _apart(computed: Tensor, expected: Tensor) -> float:
    assert computed.shape == expected.shape
    return float((computed - expected).abs().max())


def typical(errors: Tensor) -> float:
    """The error of the middle token of [n, V]: rounding sends a token to other experts now and then."""
    return float(errors.square().mean(1).sqrt().median())


def _norm(gradients: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients.values()))


def _assert_equal(computed: Mapping[str, Tensor], expected: Mapping[str, Tensor], where: str) -> None:
    """The same names, shapes, types and bits."""
    assert sorted(computed) == sorted(expected), where
    for key, tensor in expected.items():
        assert computed[key].dtype == tensor.dtype, (where, key)
        assert torch.equal(computed[key], tensor), (where, key)


def _config(path: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((path / "config.json").read_text())
    return config
