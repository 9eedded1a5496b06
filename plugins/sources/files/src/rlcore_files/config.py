"""The settings of the source."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from rlcore import DataConfig, is_url
from rlcore_files.hub import SUFFIXES, HubDataset
from rlcore_files.locations import Location, absolute_all, parse_all

ORDERS = frozenset({"reward", "teacher", "priority", "seed"})
"""Keys of the metadata that steer a run. No column becomes one: data sets have columns of these names."""

DATA_SOURCE = "data_source"
"""A column of verl's files, which its rewards read: it becomes metadata in any case."""


def _complaint(path: str) -> str | None:
    if (dataset := HubDataset.of(path)) is not None:
        return dataset.complaint()
    if Path(path).is_file():
        return None if path.endswith(SUFFIXES) else f"expected a name that ends in {' or '.join(SUFFIXES)}."
    if Path(path).is_dir():
        return "which is a folder, expected a file."
    if re.search(r"\.(jsonl|parquet)[:[]", path):
        return "which is no file; a slice is [START:STOP], a weight NAME=PATH:WEIGHT."
    hub = "" if path.endswith(SUFFIXES) else "; a data set of the hub is OWNER/NAME"
    return f"which is no file{hub}."


class FileConfig(DataConfig):
    """Prompts from files, and the responses to them where a recipe trains on these.

    A key may be a path: `a.b` is the key `b` of the object `a`.
    """

    path: str | tuple[str, ...] = Field(
        description="a .jsonl or .parquet file, one prompt a row, or a data set of the hub, "
        "OWNER/NAME, where /CONFIG and :SPLIT may follow; of several, NAME=PATH:WEIGHT each"
    )
    streaming: bool = Field(
        False, description="leave the prompts in their files, and keep only where each begins"
    )
    prompt_key: str = Field("prompt", min_length=1, description="key of the prompt: text, or chat messages")
    label_key: str = Field("label", min_length=1, description="key of what the reward compares with")
    tools_key: str = Field("tools", min_length=1, description="key of the tools that a chat template shows")
    metadata_key: str = Field("metadata", min_length=1, description="key of a table that the reward may read")
    columns_as_metadata: bool = Field(
        False, description="the reward may read the columns that no other setting names, as metadata"
    )
    response_key: str = Field(
        "response", min_length=1, description="key of the response to learn, for recipes of given responses"
    )
    messages_key: str = Field(
        "messages", min_length=1, description="key of a whole chat to learn from, likewise"
    )
    train_key: str = Field(
        "train", min_length=1, description="key of an assistant message: false or 0 keeps it out of the loss"
    )
    chosen_key: str = Field(
        "chosen", min_length=1, description="key of the better response, for recipes of given pairs"
    )
    rejected_key: str = Field("rejected", min_length=1, description="key of the worse response, likewise")
    chat_template: bool = Field(False, description="send a text prompt as one user message of a chat")
    chat_template_kwargs: dict[str, JsonValue] = Field(
        {}, description="further variables of the chat template: --source.chat-template-kwargs.NAME VALUE"
    )
    continue_final_message: bool = Field(
        False, description="let the policy go on with the message of the assistant at the end of a chat"
    )
    eval_path: str | None = Field(None, description="a file of held-out prompts, with the same keys")
    eval_fraction: float = Field(
        0.0, ge=0, lt=1, description="share of the prompts held out, chosen by their content"
    )

    shared: ClassVar[frozenset[str]] = frozenset(
        {
            *("prompt_key", "label_key", "tools_key", "metadata_key", "response_key", "messages_key"),
            *("train_key", "chosen_key", "rejected_key", "chat_template", "columns_as_metadata"),
            "continue_final_message",
        }
    )

    _absolute = field_validator("path")(absolute_all)

    @field_validator("eval_path")
    @classmethod
    def _absolute_eval_path(cls, path: str | None) -> str | None:
        return None if path is None else str(Location.parse(path).absolute())

    @classmethod
    def path_complaint(cls, paths: Sequence[str]) -> str | None:
        """Locations that cannot be parsed, files that are not there, and data sets of the hub without it."""
        try:
            locations = parse_all(paths)
        except ValueError as error:
            return f"found {', '.join(map(repr, paths))}: {error}."
        for path in (location.path for location in locations):
            if not is_url(path) and (complaint := _complaint(path)):
                return f"found {path!r}, {complaint}"
        return None

    @property
    def named_columns(self) -> frozenset[str]:
        """The keys of a row that a setting names."""
        return frozenset(getattr(self, name) for name in type(self).model_fields if name.endswith("_key"))

    @property
    def locations(self) -> tuple[Location, ...]:
        """Where the prompts are."""
        return parse_all(self.path)

    @model_validator(mode="after")
    def _one_held_out_set(self) -> Self:
        if self.eval_path is not None and self.eval_fraction > 0:
            raise ValueError("eval_path and eval_fraction exclude each other")
        return self
