"""Turns of the policy and its tools."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from rlcore import (
    CHECKED_AHEAD,
    DataError,
    GenerationContext,
    GenerationStatus,
    Json,
    Prompt,
    Sample,
    Tokenizer,
    template_text,
)
from rlcore_toolkit import (
    ChatTrajectory,
    ParsedToolCalls,
    ToolCall,
    ToolFormat,
    parse_tool_calls,
    tool_format,
)
from rlcore_tools import functions
from rlcore_tools.config import ToolsConfig
from rlcore_tools.servers import Server
from rlcore_tools.toolbox import Fault, Result, Tool, Toolbox, failure

CALLS = "tool_calls"
"""In a sample's metadata: `name`, `arguments`, `result` and `fault` of each call, in their order."""


@dataclass
class Log:
    """The calls so far."""

    calls: list[dict[str, Json]] = field(default_factory=list)
    faults: Counter[Fault] = field(default_factory=Counter)

    def add(self, call: ToolCall | None, result: Result) -> None:
        """One call; None: something that was meant as one."""
        name, arguments = (call.name, dict(call.arguments)) if call else (None, None)
        fault = None if result.fault is None else result.fault.value
        self.calls.append({"name": name, "arguments": arguments, "result": result.text, "fault": fault})
        if result.fault is not None:
            self.faults[result.fault] += 1


class Tools:
    """The policy calls, the tools answer, until it answers without a call; results are masked."""

    def __init__(self, config: ToolsConfig) -> None:
        """Raises `UserError` for a missing function or SDK. Servers start with the first sample."""
        self._config = config
        self._functions = [functions.load(name) for name in config.function]
        self._servers = [Server(where, config.start_timeout) for where in config.mcp]
        self._lock = asyncio.Lock()
        self._box: Toolbox | None = None if config.mcp else self._filled([])

    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
        """One trajectory. Raises `DataError` where the prompt is no chat, `ModelError` without a format."""
        _check_chat(sample.prompt)
        how, box = self._format(ctx.tokenizer), await self._toolbox()
        trajectory, log, text = ChatTrajectory(ctx, sample, tools=box.schemas), Log(), ""
        if trajectory.room <= 0:
            return replace(sample, status=GenerationStatus.FAILED, failure="no_room")
        while trajectory.turns < self._config.max_turns and trajectory.room:
            done = await trajectory.answer(self._config.max_turn_tokens)
            text = done.text
            if done.finish_reason == "abort":
                return _ended(trajectory, log, text, GenerationStatus.ABORTED)
            raw = ctx.tokenizer.decode(done.token_ids, skip_special_tokens=False)
            parsed = parse_tool_calls(raw, how, box.schemas)
            if done.finish_reason == "length":
                break
            if not parsed.calls and not parsed.malformed:
                return _ended(trajectory, log, text, GenerationStatus.COMPLETED)
            results = await self._called(box, parsed, log)
            told = [{"role": "tool", "content": result.text} for result in results]
            if not trajectory.go_on(done, told):
                break
        return _ended(trajectory, log, text, GenerationStatus.TRUNCATED)

    def check(self, prompts: Sequence[Prompt], tokenizer: Tokenizer) -> None:
        """Raises what `generate` would, for the first `CHECKED_AHEAD` prompts."""
        self._format(tokenizer)
        for prompt in islice(prompts, CHECKED_AHEAD):
            _check_chat(prompt)

    async def close(self) -> None:
        """End the servers."""
        await asyncio.gather(*(server.close() for server in self._servers))

    def _format(self, tokenizer: Tokenizer) -> ToolFormat:
        if self._config.format == "auto":
            return tool_format(template_text(tokenizer), "--generator.format")
        return ToolFormat(self._config.format)

    async def _toolbox(self) -> Toolbox:
        async with self._lock:
            if self._box is None:
                self._box = self._filled([tool for server in self._servers for tool in await server.tools()])
            return self._box

    def _filled(self, more: Sequence[Tool]) -> Toolbox:
        config = self._config
        return Toolbox([*self._functions, *more], timeout=config.call_timeout, most=config.max_result_chars)

    async def _called(self, box: Toolbox, parsed: ParsedToolCalls, log: Log) -> list[Result]:
        """The result of each call, and of each that is none; calls of one answer run at once."""
        most = self._config.max_calls
        results = list(await asyncio.gather(*(box.call(call) for call in parsed.calls[:most])))
        beyond = [failure(Fault.BAD, f"at most {most} calls in one answer")] * len(parsed.calls[most:])
        wrong = [failure(Fault.BAD, f"not a call that can be read: {said}") for said in parsed.malformed]
        for call, result in zip(
            [*parsed.calls, *[None] * len(wrong)], [*results, *beyond, *wrong], strict=True
        ):
            log.add(call, result)
        return [*results, *beyond, *wrong]


def _check_chat(prompt: Prompt) -> None:
    if isinstance(prompt.text, str):
        raise DataError(
            f"The prompt {prompt.prompt_id!r} is a text, and --generator tools needs a chat; expected "
            "messages, or --source.chat-template."
        )


def _ended(trajectory: ChatTrajectory, log: Log, text: str, status: GenerationStatus) -> Sample:
    metrics = {
        "turns": float(trajectory.turns),
        "tool_calls": float(len(log.calls)),
        "bad_calls": float(log.faults[Fault.BAD]),
        "tools_failed": float(log.faults[Fault.FAILED]),
        "tools_timed_out": float(log.faults[Fault.TIMED_OUT]),
    }
    return trajectory.end(status, text, metrics=metrics, metadata={CALLS: log.calls})
