"""The settings of one server process, from its command line and environment."""

import argparse
import os
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from rlcore import Config, ConfigError
from rlcore_local.requests import explain

TOKEN_VARIABLE = "RLCORE_ENGINE_TOKEN"


class Settings(Config):
    """What `python -m rlcore_local` takes."""

    model_path: Path = Field(description="Directory of a Hugging Face model.")
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(0, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    dtype: str = Field("fp32", pattern="^(fp32|bf16)$", description="fp32 or bf16: of weights and cache.")
    context_length: int | None = Field(
        None, ge=2, description="Most tokens of prompt and answer (default: the model's)."
    )
    max_batch: int = Field(64, ge=1, description="Samples that are generated at the same time at most.")
    seed: int = Field(0, description="Seed of requests that bring none of their own.")
    device: Literal["auto", "cpu", "cuda"] = Field(
        "cpu", description="What computes: cpu, cuda for a GPU, or auto for a GPU where there is one."
    )
    threads: int = Field(1, ge=1, description="Threads of torch.")
    weights_dir: Path | None = Field(None, description="The only directory from which weights are mapped.")


def parse_settings(argv: list[str]) -> Settings:
    """Settings of a command line; `ConfigError` where a value is out of bounds."""
    parser = argparse.ArgumentParser(prog="python -m rlcore_local", allow_abbrev=False)
    for name, field in Settings.model_fields.items():
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, dest=name, required=field.is_required(), help=field.description)
    given = {name: value for name, value in vars(parser.parse_args(argv)).items() if value is not None}
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        raise ConfigError(f"--{explain(error).replace('_', '-', 1)}.") from error


def read_token() -> str:
    """The bearer token, taken out of the environment so that no child or dump shows it."""
    token = os.environ.pop(TOKEN_VARIABLE, "")
    if not token:
        raise ConfigError(f"The environment variable {TOKEN_VARIABLE} must hold the token of the server.")
    return token
