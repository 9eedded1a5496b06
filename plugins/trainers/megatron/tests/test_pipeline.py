"""How layers are divided between pipeline stages: as megatron-core divides them, or refused in a sentence."""

from typing import Any

import pytest
from refusals import Case, cases

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


@cases("megatron: pipeline")
def test_refusals(case: Case) -> None:
    fields = case.given
    with case.refused(ConfigError):
        chunk_layers(fields, 7)


@pytest.mark.parametrize("text", ["Ettt|(tt|)*29,tL", "E|t*3|(t*2|)*2L", "Et,(|tt)*3,|L", "E(t)*2tL"])
def test_the_notation_is_that_of_megatron(text: str) -> None:
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    letters = {"embedding": "E", "decoder": "t", "loss": "L"}
    theirs = PipelineParallelLayerLayout.parse_str_to_list(text)
    assert layout_rows({LAYOUT: text}) == ["".join(letters[layer.name] for layer in row) for row in theirs]
