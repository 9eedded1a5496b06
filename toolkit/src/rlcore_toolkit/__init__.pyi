"""What the toolkit offers: every name, and where it is defined."""

from .presets import (
    TINY_SIZES as TINY_SIZES,
    TINY_SUGGESTS as TINY_SUGGESTS,
    write_tiny_model as write_tiny_model,
)
from .tool_calls import (
    ParsedToolCalls as ParsedToolCalls,
    ToolCall as ToolCall,
    ToolFormat as ToolFormat,
    parse_tool_calls as parse_tool_calls,
    tool_format as tool_format,
)
from .trajectory import (
    Trajectory as Trajectory,
    answered as answered,
    turn_seed as turn_seed,
)

__all__: list[str]
