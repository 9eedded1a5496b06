"""Where the tokens of samples stand in a pack that computes a prompt once for all samples of its group."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rlcore import TrainBatch, token_ranges

Piece = tuple[int, int, int, int]
"""A run of tokens and what it sees before itself: (start, length, start of that, length of that)."""


@dataclass(frozen=True, kw_only=True)
class PackLayout:
    """`source` int64 [T]: which of the batch's tokens stands where; `positions` int64 [T]: its place in its
    sample. `rows` int64 [n]: the places that predict the n response tokens, sample after sample.

    `places` int64: where each sample's tokens but its last stand, sample after sample. `extents` int64 [N]:
    tokens of each sequence or tree.
    """

    source: Tensor
    positions: Tensor
    rows: Tensor
    places: Tensor
    extents: Tensor
    pieces: list[Piece]


def prompt_trees(part: TrainBatch, is_first: Tensor | None = None) -> PackLayout:
    """The layout of trees: a trunk for each run of samples with one prompt, then a branch for each sample.

    A branch is a response without its last token. A sample alone is a trunk that goes on into its response.
    `is_first`: which samples begin a tree, as `tree_order` has it.
    """
    prompts, responses = part.prompt_lengths, part.response_lengths
    is_first = _first_of_tree(part) if is_first is None else is_first
    tree = torch.cumsum(is_first, 0) - 1
    members = torch.bincount(tree, minlength=int(is_first.sum()))
    is_alone = (members == 1)[tree]
    tail = (responses - 1).clamp(min=0)
    trunk = torch.where(is_first, prompts + torch.where(is_alone, tail, 0), 0)
    branch = torch.where(is_alone, 0, tail)
    # Each sample brings a trunk and a branch in turn, of which one may be empty and then takes no place.
    lengths = torch.stack([trunk, branch], dim=1).flatten()
    starts = torch.cumsum(lengths, 0) - lengths
    trunk_start = starts[0::2][is_first][tree]
    branch_start = torch.where(is_alone, trunk_start + prompts, starts[1::2])
    first = torch.cumsum(part.lengths, 0) - part.lengths
    sources = torch.stack([first, first + prompts], dim=1).flatten()
    offsets = torch.stack([torch.zeros_like(prompts), prompts], dim=1).flatten()
    # A trunk sees nothing before itself, a branch the prompt at the start of its tree's trunk.
    before = torch.stack([torch.zeros_like(prompts), prompts], dim=1).flatten()
    before_start = torch.stack([torch.zeros_like(prompts), trunk_start], dim=1).flatten()
    table = torch.stack([starts, lengths, before_start, before], dim=1)[lengths > 0]
    read = torch.stack([prompts - (responses == 0).long(), tail], dim=1).flatten()
    # The first response token is predicted by the prompt's last token, the others by the branch.
    rows = token_ranges(branch_start - 1, responses)
    rows[(torch.cumsum(responses, 0) - responses)[responses > 0]] = (trunk_start + prompts - 1)[responses > 0]
    return PackLayout(
        source=token_ranges(sources, lengths),
        positions=token_ranges(offsets, lengths),
        rows=rows,
        places=token_ranges(torch.stack([trunk_start, branch_start], dim=1).flatten(), read),
        extents=torch.zeros_like(members).index_add_(0, tree, trunk + branch),
        pieces=[(a, b, c, d) for a, b, c, d in table.tolist()],
    )


def tree_order(part: TrainBatch, *, share: bool = True) -> tuple[list[int], Tensor]:
    """The samples tree by tree, the longest of each first, and then those alone, the shortest first.

    Branches of one length are then side by side, and so are samples alone. Also which samples in this order
    begin a tree, bool [B]: what the order alone brings together stays apart, for its longest may be behind.
    Without `share` all do.
    """
    is_first = _first_of_tree(part) if share else torch.ones(len(part), dtype=torch.bool)
    tree = torch.cumsum(is_first, 0) - 1
    is_alone = (torch.bincount(tree) == 1)[tree]
    order = torch.argsort(torch.where(is_alone, part.lengths, -part.lengths), stable=True)
    last = torch.where(is_alone, len(part), tree)
    order = order[torch.argsort(last[order], stable=True)]
    return order.tolist(), torch.diff(tree[order], prepend=tree.new_tensor([-1])) != 0


_LEAST_SPARED = 1 / 16
"""A tree must spare this part of its tokens. To spare fewer costs more time than it saves: a branch reads
copies of its prompt's keys and values, and through a mask."""


def _first_of_tree(part: TrainBatch) -> Tensor:
    """Which samples begin a tree, bool [B].

    The others have prompt and group of the sample before. Where a tree would spare too little, each of its
    samples begins one.
    """
    tokens, ends = part.tokens.numpy(), torch.cumsum(part.lengths, 0)
    starts, stops = (ends - part.lengths).tolist(), (ends - part.response_lengths).tolist()
    groups = part.per_sample["group"].tolist() if "group" in part.per_sample else range(len(part))
    keys = [(g, tokens[a:b].tobytes()) for g, a, b in zip(groups, starts, stops, strict=True)]
    differs = [not place or key != keys[place - 1] for place, key in enumerate(keys)]
    is_first = torch.tensor(differs, dtype=torch.bool)
    tree = torch.cumsum(is_first, 0) - 1
    none = torch.zeros_like(part.lengths)
    spared = none.index_add(0, tree, torch.where(is_first, 0, part.prompt_lengths))
    whole = none.index_add(0, tree, part.lengths)
    return is_first | (spared < _LEAST_SPARED * whole)[tree]
