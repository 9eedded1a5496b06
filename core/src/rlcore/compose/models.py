"""`--model`: a family's preset, a local Hugging Face directory, a hub id, or the name of a published size."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from rlcore.api.errors import ModelError, PluginError, did_you_mean, faults_of, first_line
from rlcore.api.factory import load
from rlcore.api.records import Kind, ModelFamily
from rlcore.api.types import parse_json
from rlcore.checkpoint.folder import COMPLETE_MARKER
from rlcore.engines.classifiers import architecture_of
from rlcore.plugins.registry import Entry, Registry

HUB_ID = "_name_or_path"
"""The entry of a published size's config.json with the hub id of its model."""
ANY_OTHER = "*"
"""The architecture of a family that takes whatever no other family claims."""
_SIZES = ("hidden_size", "intermediate_size", "vocab_size", "num_attention_heads", "num_key_value_heads")
BOUNDS: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys((*_SIZES, "head_dim", "max_position_embeddings"), (1, 2**31)),
    "num_hidden_layers": (1, 10_000),
    "rms_norm_eps": (0, 1),
}
"""Field of config.json → its least and largest value: with another, nothing could be built or computed."""


@dataclass(frozen=True, kw_only=True)
class FoundModel:
    """What `--model` stands for. `path`: its directory; of a hub id only its config.json so far.

    `is_size`: the config.json is that of a published size.
    """

    entry: Entry
    name: str
    path: str | None
    hub: bool = False
    is_size: bool = False

    @property
    def family(self) -> ModelFamily:
        """The record of the family."""
        assert isinstance(self.entry.record, ModelFamily)
        return self.entry.record


def find(name: str, registry: Registry, flag: str) -> FoundModel:
    """The family of `name`. Raises `ModelError`."""
    if name in registry.names(Kind.MODEL):
        preset = FoundModel(entry=registry.find(Kind.MODEL, name, flag), name=name, path=None)
        if preset.family.preset is None:
            raise ModelError(f"{flag}: {name!r} has no preset, expected a directory or a hub id.")
        return preset
    if Path(name).is_dir():
        path = str(Path(name).resolve())
        entry = claimant(read_config(path, flag), registry, f"{flag}: {path}/config.json")
        return FoundModel(entry=entry, name=path, path=path)
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelError(f"{flag}: found {name!r}, which is no directory.")
    sizes = published_sizes(registry)
    if name in sizes:
        name = str(read_config(sizes[name], flag)[HUB_ID])
    if "/" in name:
        path = hub_config(name, registry, flag)
        entry = claimant(read_config(path, flag), registry, f"{flag}: {path}")
        return FoundModel(entry=entry, name=name, path=path, hub=True, is_size=Path(path) in sizes.values())
    near = did_you_mean(name, [*_presets(registry), *sizes])
    raise ModelError(f"{flag}: found {name!r}, expected {offer(registry)}.{near}{registry.broken_note()}")


def published_sizes(registry: Registry) -> dict[str, Path]:
    """Name → config.json of each published size, sorted by name. PluginError for a folder that is none."""
    folders = {family.sizes for family in families(registry) if family.sizes}
    files = [Path(str(file)) for folder in folders for file in _folder(folder).iterdir()]
    return {file.stem: file for file in sorted(files, key=lambda file: file.stem) if file.suffix == ".json"}


def _folder(name: str) -> Path:
    package, _, folder = name.partition(":")
    path = Path(str(resources.files(package).joinpath(folder)))
    if not path.is_dir():
        raise PluginError(f"sizes {name!r}: {path} is no folder.")
    return path


def offer(registry: Registry) -> str:
    """What names a model, for errors."""
    return f"a Hugging Face directory, a hub id (OWNER/NAME) or one of {', '.join(_presets(registry))}"


def _presets(registry: Registry) -> list[str]:
    return [family.name for family in families(registry) if family.preset]


def download(name: str, flag: str = "--model") -> str:
    """Fetch every file of a hub id that is needed, and give the directory.

    ModelError, which names `flag`.
    """
    from huggingface_hub import snapshot_download

    # Not `*.bin` or `*.pt`: those are pickles, which nothing here reads.
    kinds = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
    try:
        return str(snapshot_download(name, allow_patterns=kinds))
    except Exception as error:
        raise ModelError(_hub_sentence(flag, name, error)) from error


def adopted(
    path: str | Path, families: Iterable[ModelFamily], flag: str = "--model", cache: Path | None = None
) -> Path:
    """The directory from which the model in `path`, or of that config.json, is read.

    It is another one where a family of `families` that claims the model adopts it (`ModelFamily.adopt`).
    `cache`: the folder for copies; None: the user's. ModelError, which names `flag`.
    """
    path, architecture = Path(path), architecture_of(read_config(path, flag))
    for family in families:
        if family.adopt and architecture in family.architectures:
            folder = path.parent if path.is_file() else path
            with faults_of(f"The model family {family.name!r}"):
                return Path(load(family.adopt, family.name)(str(folder), cache))
    return path


def directory_of(model: str, families: Iterable[ModelFamily], flag: str = "--model") -> Path:
    """Where a directory or a hub id, which is downloaded, is read from (`adopted`). ModelError."""
    return adopted(model if Path(model).is_dir() else download(model, flag), families, flag)


def read_config(path: str | Path, flag: str = "--model") -> Mapping[str, Any]:
    """config.json of the Hugging Face directory `path`, or that file itself. Raises `ModelError`, which names
    `flag`.

    Where the decoder is a part of a larger model, its fields (`text_config`) stand among the model's own.
    """
    file = Path(path) if Path(path).is_file() else Path(path, "config.json")
    try:
        config = parse_json(file.read_text())
    except OSError as error:
        reason, folder = error.strerror or error, file.parent
        what = f"{file}: {reason}, so {folder} is not a Hugging Face model directory."
        runs = ("run.toml", "run", "export"), (COMPLETE_MARKER, "checkpoint", "convert")
        for marker, named, command in runs:
            if (folder / marker).is_file():
                way = f"rlcore {command} {folder} OUT"
                what = f"{folder} is a {named}; write its model out by {way}, and name OUT."
        raise ModelError(f"{flag}: {what}") from error
    except ValueError as error:
        raise ModelError(f"{flag}: {file} is broken JSON ({error}).") from error
    if not isinstance(config, dict):
        raise ModelError(f"{flag}: {file} holds no table.")
    text = config.get("text_config")
    config = {**text, **config} if isinstance(text, dict) else config
    for name, (least, most) in BOUNDS.items():
        value = config.get(name)
        if isinstance(value, int | float) and not least <= value <= most:
            raise ModelError(f"{flag}: {file} has {name} {value}, expected {least} to {most}.")
    return config


def families(registry: Registry) -> list[ModelFamily]:
    """Every model family, sorted by name."""
    return [entry.record for entry in registry.entries(Kind.MODEL) if isinstance(entry.record, ModelFamily)]


def claimant(config: Mapping[str, Any], registry: Registry, at: str) -> Entry:
    """The family that claims the architecture of `config`. Raises `ModelError`, which names `at`."""
    if not (wanted := architecture_of(config)):
        raise ModelError(f"{at} names no architecture.")
    claims = [(name, family.name) for family in families(registry) for name in family.architectures]
    names = dict.fromkeys(name for name, _ in claims)
    claimed = wanted if wanted in names else ANY_OTHER
    claimants = [registry.find(Kind.MODEL, family, at) for name, family in claims if name == claimed]
    if not claimants:
        raise ModelError(
            f"{at} names {wanted!r}, expected one of {', '.join(names) or 'none'}."
            f"{did_you_mean(wanted, names)}{registry.broken_note()}"
        )
    if len(claimants) > 1:  # the order of installation must not decide
        rivals = " and ".join(f"{entry.record.name} ({entry.provider})" for entry in claimants)
        raise ModelError(
            f"{at} names {wanted!r}, which the model families {rivals} claim; switch one off with -p no:NAME."
        )
    return claimants[0]


def hub_config(name: str, registry: Registry, flag: str) -> str:
    """The config.json of a hub id. Raises `ModelError`.

    Where the hub does not give it, that of an earlier download or of the published size with this id.
    """
    from huggingface_hub import HfApi, constants, hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    unreached: Exception | None = None
    try:  # one quick question first: without a network, a download would retry for half a minute
        HfApi().model_info(name, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except (HfHubHTTPError, ValueError):
        pass  # the hub answers, so the download below says what is wrong
    except Exception as error:
        unreached = error
    try:
        return str(hf_hub_download(name, "config.json", local_files_only=unreached is not None))
    except Exception as error:
        for file in published_sizes(registry).values():
            if read_config(file, flag).get(HUB_ID) == name:
                return str(file)
        raise ModelError(_hub_sentence(flag, name, unreached or error)) from error


def _hub_sentence(flag: str, name: str, error: Exception) -> str:
    return f"{flag}: {name!r} is no directory here and could not be had from the hub: {first_line(error)}."
