"""Prints sglang's version and what its command line takes, as JSON; run by the interpreter that has sglang.

`python sglang_dump_fields.py version` prints `{"version"}` without importing sglang. `… fields` adds
`"fields"`, {name of the ServerArgs field: type}, and `"options"`, {name: flag} where the flag is not spelled
as the name. Types: bool, bool|no (a flag with a `--no-` twin), int, float, str, json, list[int|float|str].
"""

import argparse
import importlib.metadata
import json
import sys
from typing import Any

PLAIN = {
    "int": "int",
    "float": "float",
    "loads": "json",
    "json_list_type": "json",
    "human_readable_int": "int",
}


def _type(action: argparse.Action) -> str:
    if isinstance(action, argparse.BooleanOptionalAction):
        return "bool|no"
    if action.nargs == 0:
        return "bool"
    plain = PLAIN.get(getattr(action.type, "__name__", ""), "str")
    return f"list[{plain}]" if action.nargs in ("+", "*") else plain


def _option(action: argparse.Action) -> str:
    spelled = "--" + action.dest.replace("_", "-")
    return spelled if spelled in action.option_strings else action.option_strings[0]


def server_fields() -> tuple[dict[str, str], dict[str, str]]:
    """What `sglang.launch_server` takes, read from its own parser: types and odd flags by name."""
    from sglang.srt.server_args import ServerArgs  # type: ignore[import-not-found,unused-ignore]  # its own venv

    parser = argparse.ArgumentParser(add_help=False)
    ServerArgs.add_cli_args(parser)
    # Reversed, so that of two flags for one field the first one (the other is its old name) remains.
    actions = sorted(reversed(parser._actions), key=lambda action: action.dest)
    types = {action.dest: _type(action) for action in actions}
    options = {action.dest: _option(action) for action in actions}
    odd = {name: option for name, option in options.items() if option != "--" + name.replace("_", "-")}
    return types, odd


if __name__ == "__main__":
    answer: dict[str, Any] = {"version": importlib.metadata.version("sglang")}
    if sys.argv[1] == "fields":
        answer["fields"], answer["options"] = server_fields()
    sys.stdout.write("\n" + json.dumps(answer) + "\n")
