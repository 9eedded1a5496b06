"""Reads what a Python program gives a trainer of TRL, by its syntax tree. Nothing of it is executed.

Read are the keyword arguments of GRPOConfig, SFTConfig, DPOConfig, their trainers, LoraConfig and
load_dataset: literals, names that are assigned once, and what is computed of these. Another value stands as
`$NAME`, or as `$(…)` with its source.
"""

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rlcore import ConfigError
from rlcore_import.arguments import Arguments, followed_by, of_words as of_dashes, read_yaml
from rlcore_import.trl.rewards import companion
from rlcore_import.trl.scopes import assignments, fields_set, statements_before

KINDS = ("grpo", "sft", "dpo")
PEFT = {"r": 8, "lora_alpha": 8, "lora_dropout": 0.0, "target_modules": None}
"""LoraConfig's defaults."""
RENAMED = {"r": "lora_r", "target_modules": "lora_target_modules", "modules_to_save": "lora_modules_to_save"}
"""LoraConfig's fields by the names of TRL's flags."""
QUANTIZED = ("load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type")
IGNORED = {
    "args",
    "processing_class",
    "train_dataset",
    "eval_dataset",
    "peft_config",
    "model",
    "reward_funcs",
}
"""Parameters of a trainer that are read otherwise."""


def read(words: tuple[str, ...], fixed: Mapping[str, str]) -> Arguments:
    """The arguments of a command line: a program, a YAML of `trl`, or a trainer and flags. ConfigError."""
    first = Path(words[0])
    if first.suffix == ".py":
        return followed_by(Program.of(first, fixed).arguments, of_words(words[1:]))
    if first.suffix in (".yaml", ".yml"):
        return followed_by(_of_yaml(first), of_words(words[1:]))
    return of_words(words)


def of_words(words: Sequence[str]) -> Arguments:
    """Flags, with dashes or underscores; `trl grpo` or `grpo` may stand before them. ConfigError."""
    rest = [*words[1:]] if words[:1] and words[0] == "trl" else [*words]
    entry = rest.pop(0) if rest and rest[0] in KINDS else ""
    if rest and not rest[0].startswith("--"):
        raise ConfigError(
            f"found {rest[0]!r} before the first flag, expected a Python program (.py), a YAML, one of "
            f"{', '.join(KINDS)}, or flags; of `accelerate launch` give the program and --num_processes."
        )
    found = of_dashes(rest)
    if "--config" in found.flags:  # of TRL's command
        more = Arguments(flags={name: found.flags[name] for name in found.flags if name != "--config"})
        found = followed_by(_of_yaml(Path("".join(found.flags["--config"]))), more)
    flags = {
        f"--{name[2:].replace('-', '_')}": tuple(map(_word, values)) for name, values in found.flags.items()
    }
    return Arguments(flags=flags, entry=entry)


def _of_yaml(path: Path) -> Arguments:
    content = read_yaml(path, "those of a trainer, such as learning_rate: 1e-6")
    return Arguments(flags={f"--{name}": _words(value) for name, value in content.items()})


def _words(value: Any) -> tuple[str, ...]:
    return tuple(map(_word, value)) if isinstance(value, list | tuple) and value else (_word(value),)


def _word(value: Any) -> str:
    if value is None or value == "None":
        return "null"
    if isinstance(value, Mapping):
        return json.dumps(value)
    return str(value).lower() if str(value) in ("True", "False") else str(value)


class _UnknownError(Exception):
    """A value that the tree does not say; its text is what stands for it."""


@dataclass(frozen=True)
class Program:
    """A program. `fixed`: the values of names that it cannot set."""

    path: Path
    source: str
    tree: ast.Module
    fixed: Mapping[str, str]

    @classmethod
    def of(cls, path: Path, fixed: Mapping[str, str]) -> "Program":
        """ConfigError for what is no Python program."""
        try:
            source = path.read_text()
            return cls(path, source, ast.parse(source), fixed)
        except (OSError, UnicodeDecodeError, SyntaxError, ValueError) as error:
            why = (
                error.strerror
                if isinstance(error, OSError) and error.strerror
                else f"found no Python ({error})"
            )
            raise ConfigError(f"{path}: {why}.") from error

    @property
    def arguments(self) -> Arguments:
        """Flags by TRL's names, the kind of the trainer, and a file with its reward functions."""
        trainers = [(kind, call) for kind in KINDS for call in self._calls(f"{kind.upper()}Trainer")]
        if len(trainers) != 1:
            calls = (_called(node) for node in ast.walk(self.tree) if isinstance(node, ast.Call))
            found = [name for name in calls if name.endswith("Trainer")]
            raise ConfigError(
                f"{self.path}: found {', '.join(found) or 'no trainer'}, expected one call of GRPOTrainer, "
                "SFTTrainer or DPOTrainer."
            )
        [(kind, trainer)] = trainers
        given = self._named(trainer)
        flags = dict(self._keywords(f"{kind.upper()}Config", {})) | self._set_later(
            trainer, given.get("args")
        )
        if trainer.args:
            given.setdefault("model", trainer.args[0])
        flags |= {f"--{name}": self._value(node) for name, node in given.items() if name not in IGNORED}
        if "model" in given:
            flags |= self._model(given["model"])
        if "peft_config" in given:
            flags |= self._adapter(self._calls("LoraConfig"))
        flags |= dict(self._data(given.get("train_dataset"), "dataset"))
        flags |= dict(self._data(given.get("eval_dataset"), "eval_dataset"))
        parsed = {name for name, values in flags.items() if _is_parsed(name, values)}
        arguments = Arguments(flags={name: flags[name] for name in flags if name not in parsed}, entry=kind)
        return self._with_rewards(arguments, given["reward_funcs"]) if "reward_funcs" in given else arguments

    def _with_rewards(self, arguments: Arguments, node: ast.expr) -> Arguments:
        listed = self._defined(node)
        functions = listed.elts if isinstance(listed, ast.List | ast.Tuple) else [listed]
        names, text = companion(self.tree, self.source, functions)
        file = {f"{self.path.stem}_rewards.py": text} if text else {}
        return replace(arguments, flags={**arguments.flags, "--reward_funcs": tuple(names)}, files=file)

    def _calls(self, name: str) -> list[ast.Call]:
        nodes = (node for node in ast.walk(self.tree) if isinstance(node, ast.Call))
        return [node for node in nodes if _called(node) == name]

    def _keywords(self, name: str, defaults: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The arguments of each call of a config class."""
        for call in self._calls(name):
            yield from self._fields(call, defaults)

    def _fields(self, call: ast.Call, defaults: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...]]]:
        found = {name: self._value(node) for name, node in self._named(call).items()}
        if call.args:
            found.setdefault("output_dir", self._value(call.args[0]))
        merged = {key: _words(value) for key, value in defaults.items()} | found
        yield from ((f"--{RENAMED.get(key, key)}", value) for key, value in merged.items())

    def _named(self, call: ast.Call) -> dict[str, ast.expr]:
        """The keyword arguments of a call, those of `**` among them. ConfigError where they are not known."""
        named: dict[str, ast.expr] = {}
        for keyword in call.keywords:
            node = keyword.value if keyword.arg else self._defined(keyword.value)
            if keyword.arg:
                named[keyword.arg] = node
            elif isinstance(node, ast.Call) and _called(node) == "dict":
                named |= self._named(node)
            elif isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
                pairs = zip(node.keys, node.values, strict=True)
                named |= {str(key.value): value for key, value in pairs if isinstance(key, ast.Constant)}
            else:
                raise ConfigError(
                    f"{self.path}, line {call.lineno}: found **{ast.unparse(keyword.value)}, which the "
                    "program computes, expected arguments by their names; write them out."
                )
        return named

    def _set_later(self, trainer: ast.Call, config: ast.expr | None) -> dict[str, tuple[str, ...]]:
        """What is assigned to a field of the trainer's `args`: `config.max_steps = 10`.

        Known is what stands in the block of the trainer's call, between the making of `config` and the call.
        An assignment elsewhere, such as below an `if`, makes the field unknown.
        """
        known: dict[str, tuple[str, ...]] = {}
        unknown: dict[str, tuple[str, ...]] = {}
        if not isinstance(config, ast.Name):
            return known
        sure = statements_before(trainer, config.id, self.tree)
        for node in assignments(trainer, config.id, self.tree):
            for field in fields_set(node, config.id):
                if isinstance(node, ast.Assign) and node in sure and field in node.targets:
                    known[f"--{field.attr}"] = self._value(node.value)
                else:
                    unknown[f"--{field.attr}"] = (f"$({ast.unparse(node)})",)
        return known | unknown

    def _adapter(self, calls: Sequence[ast.Call]) -> dict[str, tuple[str, ...]]:
        """LoRA's fields by the names of TRL's flags; empty: none is made."""
        fields = {name: value for call in calls for name, value in self._fields(call, PEFT)}
        return {"--use_peft": ("true",), **fields} if calls else {}

    def _model(self, node: ast.expr) -> dict[str, tuple[str, ...]]:
        """What is loaded, by its directory or hub id, and the adapter that is put on it."""
        adapter: dict[str, tuple[str, ...]] = {}
        used: Counter[str] = Counter()
        while isinstance(node, ast.Name | ast.Call):
            if isinstance(node, ast.Name):
                if (earlier := self._before(node.id, used)) is None or node.id in self.fixed:
                    break
                node = earlier
            elif _called(node) == "get_peft_model" and node.args:  # of PEFT, or of Unsloth with LoRA's fields
                bare = ast.Call(node.func, [], [key for key in node.keywords if key.arg in (*PEFT, *RENAMED)])
                adapter = self._adapter([bare] if bare.keywords else self._calls("LoraConfig"))
                node = node.args[0]
            elif _called(node) == "from_pretrained":
                given = {keyword.arg: keyword.value for keyword in node.keywords}
                quantized = self._calls("BitsAndBytesConfig") if "quantization_config" in given else []
                given |= {key.arg: key.value for call in quantized for key in call.keywords}
                adapter |= {f"--{name}": self._value(given[name]) for name in QUANTIZED if name in given}
                named = (given.get(name) for name in ("model_name", "pretrained_model_name_or_path"))
                loaded = node.args[0] if node.args else next(filter(None, named), None)
                if loaded is None:
                    break
                node = loaded
            elif isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
                node = node.func.value  # .to("cuda")
            else:
                break
        return {"--model_name_or_path": self._value(node), **adapter}

    def _data(self, node: ast.expr | None, name: str) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The data set, and what the program makes of its rows."""
        used: Counter[str] = Counter()
        while node is not None:
            if isinstance(node, ast.Name) and (earlier := self._before(node.id, used)) is not None:
                node = earlier
            elif isinstance(node, ast.Subscript):  # dataset["train"]
                yield f"--{name}_split", self._value(node.slice)
                node = node.value
            elif isinstance(node, ast.Call) and _called(node) == "load_dataset":
                yield from self._loading(node, name)
                return
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                yield f"--{name}.{node.func.attr}", (ast.unparse(node.args[0]) if node.args else "",)
                node = node.func.value
            else:
                yield f"--{name}_name", (f"$({ast.unparse(node)})",)
                return

    def _before(self, name: str, used: Counter[str]) -> ast.expr | None:
        """What the name was before `used` of its assignments, of which each but the first changes it."""
        versions = self._versions.get(name, [])
        used[name] += 1
        at = len(versions) - used[name]
        return versions[at] if at == 0 or (at > 0 and _changes(versions[at], name)) else None

    def _loading(self, call: ast.Call, name: str) -> Iterator[tuple[str, tuple[str, ...]]]:
        given = dict(zip(("path", "name"), call.args, strict=False))
        given |= self._named(call)
        named = {"path": f"{name}_name", "name": f"{name}_config", "split": f"{name}_split"}
        for key, node in given.items():
            yield f"--{named.get(key, f'{name}.{key}')}", self._value(node)

    @cached_property
    def _versions(self) -> Mapping[str, list[ast.expr]]:
        """Name → what it is set to, in order."""
        versions: dict[str, list[ast.expr]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign):
                target = node.targets[0]
                loads = isinstance(node.value, ast.Call) and _called(node.value) == "from_pretrained"
                if isinstance(target, ast.Tuple) and loads:  # model, tokenizer = …
                    target = target.elts[0]
                if isinstance(target, ast.Name):
                    versions.setdefault(target.id, []).append(node.value)
        return versions

    def _defined(self, node: ast.expr) -> ast.expr:
        """What a name stands for, if one assignment says it."""
        while isinstance(node, ast.Name) and len(found := self._versions.get(node.id, [])) == 1:
            if node.id in self.fixed:
                break
            [node] = found
        return node

    def _value(self, node: ast.expr) -> tuple[str, ...]:
        try:
            return _words(self._evaluated(node))
        except _UnknownError as error:
            return (str(error),)

    def _evaluated(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.List() | ast.Tuple():
                return [self._evaluated(item) for item in node.elts]
            case ast.Dict(keys=keys, values=values) if all(keys):
                pairs = zip(keys, values, strict=True)
                return {str(self._evaluated(key)): self._evaluated(item) for key, item in pairs if key}
            case ast.Name() if node.id in self.fixed:
                return self.fixed[node.id]
            case ast.Name():
                value = self._defined(node)
                if isinstance(value, ast.Name):
                    raise _UnknownError(f"${node.id}")
                return self._evaluated(value)
            case ast.Attribute(value=ast.Name(id="torch")):  # torch.bfloat16
                return node.attr
            case ast.UnaryOp(op=ast.USub()):
                return -self._evaluated(node.operand)
            case ast.JoinedStr():
                parts = (part.value if isinstance(part, ast.FormattedValue) else part for part in node.values)
                return "".join(str(self._evaluated(part)) for part in parts)
            case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.FloorDiv() | ast.Div() | ast.Pow()):
                left, right = (ast.Constant(self._evaluated(side)) for side in (node.left, node.right))
                return _computed(left.value, node.op, right.value, ast.unparse(node))
        raise _UnknownError(f"$({ast.unparse(node)})")


def _is_parsed(name: str, values: tuple[str, ...]) -> bool:
    """Whether the flag of the same name says it, as in `script.dataset_name`."""
    field = {"--dataset_split": "dataset_train_split", "--eval_dataset_split": "dataset_test_split"}
    return bool(re.fullmatch(rf"\$\(\w+\.{field.get(name, name[2:])}\)", values[0]))


def _computed(left: Any, operator: ast.operator, right: Any, source: str) -> Any:
    """A sum of numbers, or of texts."""
    both_numbers = isinstance(left, int | float) and isinstance(right, int | float)
    try:
        match operator:
            case ast.Add() if both_numbers or (isinstance(left, str) and isinstance(right, str)):
                return left + right
            case ast.Sub() if both_numbers:
                return left - right
            case ast.Mult() if both_numbers:
                return left * right
            case ast.FloorDiv() if both_numbers:
                return left // right
            case ast.Div() if both_numbers:
                return left / right
            case ast.Pow() if both_numbers and abs(right) < 64:
                return left**right
    except ArithmeticError:
        pass
    raise _UnknownError(f"$({source})")


def _called(call: ast.Call) -> str:
    """The last name of what is called."""
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _changes(value: ast.expr, name: str) -> bool:
    """Whether it is made of what the name stood for before: `dataset = dataset.map(…)`."""
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(value))
