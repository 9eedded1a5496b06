"""A plugin package, made of the files in `templates/`.

`templates/common` goes into every package, `templates/KIND` into one of that kind; its `template.toml` says
what the package does. The files are what they will be but for the words of `placeholders`, so they are read
and linted as they are.
"""

import io
import keyword
import tokenize
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from pathlib import Path

from rlcore import ConfigError, __version__, write_atomically

TEMPLATES = Path(__file__).with_name("templates")
COMMON, LICENSES, ABOUT = "common", "licenses", "template.toml"
DEMO = (
    *("cli", "grpo", "local", "megatron", "qwen"),
    *("processes", "sampling", "single-turn", "tasks", "text"),
)
"""The members that `rlcore train --algo grpo --model qwen3` needs."""


def kinds() -> list[str]:
    """What there is a template for."""
    return sorted(path.parent.name for path in TEMPLATES.glob(f"*/{ABOUT}"))


def licenses() -> list[str]:
    """The SPDX names of the licenses that a package may have."""
    return sorted(path.stem for path in (TEMPLATES / LICENSES).iterdir())


def write_package(kind: str, name: str, license_name: str, folder: Path) -> None:
    """Make `folder`, whole or not at all. Raises `ConfigError` where the name would break the code."""
    words = placeholders(kind, name, license_name)
    files = dict(_templates(kind, license_name))
    _check_identifiers(name, [text for path, text in files.items() if path.endswith(".py")], words)
    with write_atomically(folder, marked=False) as draft:
        for path, text in files.items():
            file = draft / _with_meanings(path, words)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(_with_meanings(text, words), encoding="utf-8")


def placeholders(kind: str, name: str, license_name: str) -> Mapping[str, str]:
    """Each word that stands in the templates for something else."""
    about = tomllib.loads((TEMPLATES / kind / ABOUT).read_text(encoding="utf-8"))
    members = [f"rlcore-{member}" for member in ("testing", *DEMO)]
    return {
        '"MY_DEPENDENCIES"': _toml_list(["rlcore", *about.get("dependencies", ())], ", "),
        '"MY_DEV"': _toml_list(sorted({*members, *about.get("dev", ())}), ",\n  "),
        "MY_DESCRIPTION": about["description"],
        "MY_USE": about["use"],
        "MY_RANGE": f"rlcore{this_line(__version__)}",
        "MY_LICENSE": license_name,
        "MY_YEAR": str(date.today().year),
        "my_plugin": name,
        "my-plugin": name.replace("_", "-"),
        "MyPlugin": name.title().replace("_", ""),
    }


def this_line(version: str) -> str:
    """The releases that keep every name of `version`: 0.4.2 → >=0.4,<0.5 and 1.4.2 → >=1.4,<2."""
    major, minor = map(int, version.split(".")[:2])
    return f">={major}.{minor},<{major + 1}" if major else f">=0.{minor},<0.{minor + 1}"


def _toml_list(requirements: Iterable[str], between: str) -> str:
    """The requirements in TOML. Members of rlcore carry its version."""
    line = this_line(__version__)
    return between.join(
        f'"{requirement}{line if requirement.startswith("rlcore") else ""}"' for requirement in requirements
    )


def _templates(kind: str, license_name: str) -> Iterator[tuple[str, str]]:
    """Path and text of each file, placeholders in both."""
    for root in (TEMPLATES / COMMON, TEMPLATES / kind):
        for file in sorted(root.rglob("*")):
            path = file.relative_to(root)
            if file.is_file() and path.name != ABOUT and "__pycache__" not in path.parts:
                yield path.as_posix(), file.read_text(encoding="utf-8")
    yield "LICENSE", (TEMPLATES / LICENSES / f"{license_name}.txt").read_text(encoding="utf-8")


def _with_meanings(text: str, words: Mapping[str, str]) -> str:
    for word, meaning in words.items():
        text = text.replace(word, meaning)
    return text


def _check_identifiers(name: str, modules: Iterable[str], words: Mapping[str, str]) -> None:
    """What the name makes of an identifier is no keyword, and no other identifier of the module."""
    for text in modules:
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        identifiers = {token.string for token in tokens if token.type == tokenize.NAME}
        results = {_with_meanings(identifier, words) for identifier in identifiers}
        if len(results) < len(identifiers) or any(
            keyword.iskeyword(identifier) for identifier in results - identifiers
        ):
            raise ConfigError(f"new: found the name {name!r}, which the code has for something else.")
