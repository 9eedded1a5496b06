"""Python functions as tools: the schema comes from type hints and docstring."""

import inspect
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError

from rlcore import ConfigError, Json, first_line
from rlcore_toolkit import call_in_thread, load_object
from rlcore_tools.toolbox import BadCallError, schema_of

_PARAMETER = re.compile(r"^\s+(\w+)(?: \([^)]*\))?: (.+(?:\n {8,}.+)*)", re.MULTILINE)
"""A line `name: text` or `name (type): text`, and those that go on with it."""


class FunctionTool:
    """A function with type hints; a coroutine is awaited, anything else runs in a thread of its own.

    The docstring's first paragraph describes it, and a section `Args:` its parameters (`name: what it is`).
    What it returns is told as it is where it is a text, else as JSON.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        """`name`: as the user gave it. Raises `ConfigError` where a schema cannot be made."""
        self.name = function.__name__
        self._function = function
        self._arguments = _model(name, function)
        parameters = _plain(self._arguments.model_json_schema())
        self.schema = schema_of(self.name, _description(function), parameters)

    async def call(self, arguments: Mapping[str, Json]) -> str:
        """The function's result as text."""
        try:
            checked = self._arguments.model_validate(dict(arguments))
        except ValidationError as error:
            faults = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
            raise BadCallError(f"{self.name}: {'; '.join(faults)}") from error
        given = {name: getattr(checked, name) for name in type(checked).model_fields}
        if inspect.iscoroutinefunction(self._function):
            answer = await self._function(**given)
        else:
            answer = await call_in_thread(lambda: self._function(**given))
        return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False, default=str)


def load(name: str) -> FunctionTool:
    """The tool that a setting names. Raises `ConfigError` where there is none, or it has no schema."""
    function = load_object(name, "--generator.function")
    if not inspect.isfunction(function):
        raise ConfigError(f"--generator.function {name}: found {function!r}, expected a function.")
    return FunctionTool(name, function)


def _model(name: str, function: Callable[..., Any]) -> type[BaseModel]:
    hints, said = get_type_hints(function), _parameters(function)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name not in hints or parameter.kind not in (
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            inspect.Parameter.KEYWORD_ONLY,
        ):
            raise ConfigError(
                f"--generator.function {name}: its parameter {parameter} has no type hint, or no name of its "
                "own; expected `name: type`."
            )
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        field = Field(default, description=said.get(parameter.name))
        fields[parameter.name] = (hints[parameter.name], field)
    try:
        made: type[BaseModel] = create_model(
            function.__name__, __config__=ConfigDict(extra="forbid"), **fields
        )
    except (PydanticSchemaGenerationError, NameError) as error:
        raise ConfigError(
            f"--generator.function {name}: a type hint has no JSON schema: {first_line(error)}."
        ) from error
    return made


def _description(function: Callable[..., Any]) -> str:
    return " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())


def _parameters(function: Callable[..., Any]) -> dict[str, str]:
    """What the section `Args:` says."""
    _, _, section = (inspect.getdoc(function) or "").partition("Args:\n")
    pairs = _PARAMETER.findall(section.partition("\n\n")[0])
    return {name: " ".join(text.split()) for name, text in pairs}


def _plain(schema: Json) -> Json:
    """Without pydantic's titles, which say nothing."""
    if isinstance(schema, dict):
        return {
            key: _plain(value)
            for key, value in schema.items()
            if not (key == "title" and isinstance(value, str))
        }
    return [_plain(value) for value in schema] if isinstance(schema, list) else schema
