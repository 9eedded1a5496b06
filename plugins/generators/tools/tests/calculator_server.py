"""An MCP server: `python calculator_server.py` speaks over stdio, with a port over HTTP on loopback."""

import os
import sys
import time

from mcp.server.mcpserver import MCPServer

server = MCPServer("calculator")


@server.tool()
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


@server.tool()
def divide(a: int, b: int) -> float:
    """Divide one number by another."""
    return a / b


@server.tool()
def leave() -> str:
    """End the server in the middle of a call."""
    os._exit(1)


@server.tool()
def sleep(seconds: float) -> str:
    """Wait."""
    time.sleep(seconds)
    return "rested"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run(transport="streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run()
