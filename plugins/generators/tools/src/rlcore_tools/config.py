"""The settings of `tools`."""

from typing import Literal, Self

from pydantic import Field, model_validator

from rlcore import GeneratorConfig


class ToolsConfig(GeneratorConfig):
    """Which tools, and the limits of their use."""

    function: tuple[str, ...] = Field(
        (), description="a Python function as a tool: module:function, or path/to/file.py:function"
    )
    mcp: tuple[str, ...] = Field(
        (), description="an MCP server, with all of its tools: its URL, or the command that starts it"
    )
    format: Literal["auto", "hermes", "glm", "qwen_xml", "llama", "deepseek"] = Field(
        "auto", description="how the model writes calls; auto: as its chat template says"
    )
    max_turns: int = Field(8, ge=1, description="answers of the policy; then the sample is truncated")
    max_turn_tokens: int | None = Field(
        None, ge=1, description="tokens of one answer; none: what is left of --max-response-tokens"
    )
    max_calls: int = Field(8, ge=1, description="calls in one answer; those beyond are refused")
    max_result_chars: int = Field(8192, ge=1, description="characters of a result; the rest is cut")
    call_timeout: float = Field(30.0, gt=0, description="seconds that a call may take")
    start_timeout: float = Field(60.0, gt=0, description="seconds that an MCP server may take to start")

    @model_validator(mode="after")
    def _some_tool(self) -> Self:
        if not self.function and not self.mcp:
            raise ValueError("there is no tool: expected function or mcp")
        return self
