"""The floating-point operations of a training step."""

from collections.abc import Iterable

import torch

from rlcore.api.batch import TrainBatch
from rlcore.api.model_facts import DeltaFacts, ModelFacts


def training_flops(facts: ModelFacts, lengths: Iterable[int]) -> float:
    """Operations of one optimizer step on sequences of these lengths: the forward pass, and twice that
    backward.

    Only matrix products count, with causal attention. Recomputation does not count, as usual for MFU.
    """
    # A weight costs 2 operations a token. Causal attention takes half of the 2 · length² · (d_key + d_value)
    # of a head: token t attends to t others.
    products, attention = _products(facts), _attentions(facts) * facts.heads * sum(_attended(facts))
    return 3.0 * sum(2.0 * length * products + float(length) ** 2 * attention for length in lengths)


def with_costs(batch: TrainBatch, facts: ModelFacts) -> TrainBatch:
    """`batch` with the operations of each sample as the column `cost`."""
    costs = [training_flops(facts, [length]) for length in batch.lengths.tolist()]
    return batch.with_columns(per_sample={"cost": torch.tensor(costs, dtype=torch.float64)})


def _products(facts: ModelFacts) -> int:
    """Weights that one token is multiplied by."""
    dense = facts.experts.first_dense if facts.experts else facts.layers
    mlp = 3 * facts.hidden * facts.width * dense
    if facts.experts:
        experts = facts.experts
        # The router sees all experts, a token only the active and the shared ones; 3: gate, up and down.
        each = experts.count + 3 * (experts.active * experts.width + experts.shared) + experts.shared_gate
        mlp += facts.hidden * each * (facts.layers - dense)
    mixers = _attentions(facts) * _projections(facts)
    mixers += len(facts.delta.layers) * _delta_net(facts.hidden, facts.delta) if facts.delta else 0
    return mlp + mixers + facts.hidden * facts.vocabulary


def _attentions(facts: ModelFacts) -> int:
    """Layers with attention."""
    return facts.layers - (len(facts.delta.layers) if facts.delta else 0)


def _delta_net(hidden: int, delta: DeltaFacts) -> int:
    """Numbers of one gated delta net that one token is multiplied by.

    Its projections: queries, keys, values and one rate of each head; what it forgets by, and the gates of the
    values, maybe of low rank; the output. And the state of each value head three times
    (https://arxiv.org/abs/2412.06464, eq. 10): read by the key, written, read by the query.
    """
    keys, values = delta.key_heads * delta.key, delta.value_heads * delta.value
    gates = delta.rank * (2 * hidden + keys + values) or hidden * (delta.value_heads + values)
    return hidden * (2 * (keys + values) + delta.value_heads) + gates + 3 * values * delta.key


def _projections(facts: ModelFacts) -> int:
    """Weights of one layer's attention that one token is multiplied by."""
    latent, hidden, heads = facts.latent, facts.hidden, facts.heads
    if latent is None:
        return hidden * facts.head * ((3 if facts.output_gate else 2) * heads + 2 * facts.groups)
    # Multi-head latent attention (https://arxiv.org/abs/2405.04434, section 2.1): queries, keys and values
    # come from compressed vectors, and one rotated key serves all heads.
    rows = heads * (latent.unrotated + latent.rotated)
    query = (hidden + rows) * latent.query if latent.query else hidden * rows
    key_value = hidden * (latent.key_value + latent.rotated)
    output = heads * (latent.key_value * (latent.unrotated + latent.value) + latent.value * hidden)
    return query + key_value + output


def _attended(facts: ModelFacts) -> tuple[int, int]:
    """Dimensions of a key and of a value of one head."""
    if facts.latent is None:
        return facts.head, facts.head
    return facts.latent.unrotated + facts.latent.rotated, facts.latent.value
