"""How layers are divided between pipeline stages: as megatron-core divides them, or refused in a sentence."""

from typing import Any

import pytest

import rlcore_megatron.mcore  # noqa: F401 - makes megatron-core importable
from rlcore.api.errors import ConfigError
from rlcore_megatron.pipeline import chunk_layers, layout_rows

STAGES = "pipeline_model_parallel_size"
VIRTUAL = "virtual_pipeline_model_parallel_size"
FIRST, LAST = "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"
EMBEDDING, LOSS = "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"
LAYOUT = "pipeline_model_parallel_layout"


@pytest.mark.parametrize(
    ("fields", "layers", "expected"),
    [
        ({}, 5, [[5]]),
        ({STAGES: "2"}, 4, [[2], [2]]),
        ({STAGES: 2, VIRTUAL: "none"}, 4, [[2], [2]]),
        ({STAGES: 4, LAST: "13"}, 61, [[16], [16], [16], [13]]),
        ({STAGES: 4, FIRST: 14, LAST: "none"}, 62, [[14], [16], [16], [16]]),
        ({STAGES: 2, FIRST: 3, LAST: 1}, 4, [[3], [1]]),
        ({STAGES: 2, VIRTUAL: 2, LAST: 4}, 6, [[1, 1], [2, 2]]),
        ({STAGES: 3, LOSS: "true"}, 5, [[2], [2], [1]]),
        ({STAGES: 2, EMBEDDING: True, LOSS: True, VIRTUAL: 2}, 6, [[1, 2], [2, 1]]),
        ({STAGES: 2, LAYOUT: "E|t|(t)*2|L", VIRTUAL: 2}, 3, [[0, 2], [1, 0]]),
    ],
)
def test_layers_of_each_chunk(fields: dict[str, Any], layers: int, expected: list[list[int]]) -> None:
    assert chunk_layers(fields, layers) == expected


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {STAGES: 3, LAST: 2},
            "--megatron.num-layers-in-last-pipeline-stage 2: 5 of the model's num_hidden_layers (7) are "
            "left, which 2 other stages cannot share evenly.",
        ),
        (
            {STAGES: 2, FIRST: 4, LAST: 2},
            "--megatron.num-layers-in-first-pipeline-stage 4 and "
            "--megatron.num-layers-in-last-pipeline-stage 2: 1 of the model's num_hidden_layers (7) are "
            "left, which 0 other stages cannot share evenly.",
        ),
        (
            {STAGES: 3, LAST: 7},
            "--megatron.num-layers-in-last-pipeline-stage 7: 0 of the model's num_hidden_layers (7) are "
            "left, which 2 other stages cannot share evenly.",
        ),
        ({STAGES: 3, LOSS: "on"}, "(7) and --megatron.account-for-loss-in-pipeline-split; or divide them"),
        (
            {STAGES: 2, LAYOUT: "Ettt|ttttt,L"},
            "--megatron.pipeline-model-parallel-layout: found 8 layers (t)",
        ),
        (
            {STAGES: 2, LAYOUT: "Ettt|tt|ttL"},
            "3 stages, expected a multiple of pipeline_model_parallel_size (2)",
        ),
        ({STAGES: 2, LAYOUT: "Etttx|ttttL"}, "first E (the embedding), last L (the loss), between them t"),
        (
            {STAGES: 2, LAYOUT: "Ettt|tttmL"},
            "a layer for multi-token prediction (m) is always on the last stage",
        ),
        ({STAGES: 2, LAYOUT: "tttE|ttttL"}, "first E (the embedding), last L"),
        ({STAGES: 2, LAYOUT: "EtttttttL|L"}, "first E (the embedding), last L"),
        ({STAGES: 2, LAYOUT: "Etttt||ttt|L"}, "whose stage 1 is empty"),
    ],
)
def test_refusals(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        chunk_layers(fields, 7)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["Ettt|(tt|)*29,tL", "E|t*3|(t*2|)*2L", "Et,(|tt)*3,|L", "E(t)*2tL"])
def test_the_notation_is_that_of_megatron(text: str) -> None:
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    letters = {"embedding": "E", "decoder": "t", "loss": "L"}
    theirs = PipelineParallelLayerLayout.parse_str_to_list(text)
    assert layout_rows({LAYOUT: text}) == ["".join(letters[layer.name] for layer in row) for row in theirs]
