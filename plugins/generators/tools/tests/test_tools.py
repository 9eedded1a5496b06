"""The generator `tools`: calls, results, limits, and what is told the model of a bad call."""

import asyncio
import json
import sys
import time
from typing import Any, Literal

import pytest
from refusals import Case, cases

from rlcore.api.errors import ConfigError, DataError, MissingPackageError, ModelError
from rlcore.api.generation import CheckingGenerator, Generator
from rlcore.api.types import GenerationStatus, Json, Prompt, Sample, Sampling
from rlcore.rollout.context import EngineContext
from rlcore_testing.generators import GeneratorConformance
from rlcore_testing.token_engine import ByteTokenizer, CountingReward, TokenEngine
from rlcore_tools.config import ToolsConfig
from rlcore_tools.functions import load
from rlcore_tools.generator import CALLS, Tools

QUESTION = ({"role": "user", "content": "2 + 3?"},)


def add(a: int, b: int = 1, *, unit: Literal["m", "km"] = "m") -> str:
    """Add two
    lengths.

    Args:
        a: the first one
        b: the second one,
            which may be left out
        unit: what they are measured in
    """
    return f"{a + b} {unit}"


async def table(rows: list[int]) -> dict[str, int]:
    """Sum up."""
    return {"sum": sum(rows)}


def hang() -> str:
    """Takes its time."""
    time.sleep(3)
    return ""


def broken() -> str:
    """Raises."""
    raise KeyError("nothing")


def untyped(a):  # type: ignore[no-untyped-def] # what is refused
    return a


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mytools", sys.modules[__name__])


def call(name: str, **arguments: Json) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def generator(**settings: Any) -> Tools:
    functions = [f"mytools:{name}" for name in ("add", "table", "hang", "broken")]
    return Tools(ToolsConfig(**{"function": functions, "call_timeout": 0.3, **settings}))


class TestConformance(GeneratorConformance):
    writes_prompts = True
    max_tokens = 2500

    def generator(self) -> Generator:
        return generator()

    def prompt(self) -> Prompt:
        return Prompt(prompt_id="p", text=QUESTION)

    def answer(self, prompt: str, seed: int) -> str:
        return "5 m" if "<|im_start|>tool" in prompt else call("add", a=2, b=3)


def talk(*said: str, prompt: Any = QUESTION, max_tokens: int = 4000, **settings: Any) -> tuple[Sample, str]:
    """The sample, and its response as text; the policy says `said`, turn by turn."""
    engine = TokenEngine(lambda prompt, seed: said[prompt.count("<|im_start|>assistant") - 1])
    ctx = EngineContext(engine, engine.tokenizer, Sampling(max_tokens=max_tokens), CountingReward())
    pending = Sample(
        prompt=Prompt(prompt_id="p", text=prompt), prompt_ids=(1,), group_id=0, index=0, rollout_id="0.0"
    )
    found = asyncio.run(generator(**settings).generate(ctx, pending))
    return found, engine.tokenizer.decode(found.response_ids, skip_special_tokens=False)


def results(sample: Sample) -> list[tuple[str | None, str]]:
    return [(one["fault"], one["result"]) for one in sample.metadata[CALLS]]


def test_a_call_and_its_result() -> None:
    found, text = talk(call("add", a=2, b=3), "5")
    told = "\n<|im_start|>tool\n5 m<|im_end|>\n<|im_start|>assistant\n"
    assert text == f"{call('add', a=2, b=3)}<|im_end|>{told}5<|im_end|>"
    assert (found.status, found.text) == (GenerationStatus.COMPLETED, "5")
    masked = [token for token, live in zip(found.response_ids, found.loss_mask, strict=True) if not live]
    assert masked == TokenEngine(lambda prompt, seed: "").tokenizer.encode(told, add_special_tokens=False)
    assert found.metadata[CALLS] == [
        {"name": "add", "arguments": {"a": 2, "b": 3}, "result": "5 m", "fault": None}
    ]
    assert found.metrics == {
        "turns": 2, "tool_calls": 1, "bad_calls": 0, "tools_failed": 0, "tools_timed_out": 0,
    }  # fmt: skip


def test_the_prompt_tells_the_tools() -> None:
    found, _ = talk("no need")
    said = TokenEngine(lambda prompt, seed: "").tokenizer.decode(found.prompt_ids, skip_special_tokens=False)
    assert "'name': 'add'" in said
    assert said.endswith("2 + 3?<|im_end|>\n<|im_start|>assistant\n")


def test_calls_of_one_answer_are_answered_in_their_order() -> None:
    found, text = talk(call("table", rows=[1, 2]) + call("add", a="4"), "done")
    assert results(found) == [(None, '{"sum": 3}'), (None, "5 m")]
    assert text.index('{"sum": 3}') < text.index("5 m")


@pytest.mark.parametrize(
    ("said", "fault", "told"),
    [
        (call("ad", a=1), "bad_call", "Did you mean 'add'?"),
        (call("add"), "bad_call", "a: Field required"),
        (call("add", a="x"), "bad_call", "a: Input should be a valid integer"),
        (call("add", a=1, c=2), "bad_call", "c: Extra inputs are not permitted"),
        ("<tool_call>{}</tool_call>", "bad_call", "not a call that can be read"),
        ("<tool_call>{", "bad_call", "not a call that can be read"),
        (call("broken"), "tool_failed", "KeyError"),
        (call("hang"), "tool_timed_out", "took longer than 0.3 s"),
        (call("add", a=1) * 3, "bad_call", "at most 2 calls in one answer"),
    ],
)
def test_what_goes_wrong_is_told_the_model(said: str, fault: str, told: str) -> None:
    found, text = talk(said, "sorry", max_calls=2)
    assert results(found)[-1][0] == fault
    assert "Error: " in text
    assert told in text
    assert found.status is GenerationStatus.COMPLETED


def test_a_long_result_is_cut() -> None:
    found, _ = talk(call("table", rows=[1, 2]), "done", max_result_chars=4)
    assert results(found) == [(None, '{"su… (cut)')]


def test_limits_truncate() -> None:
    again = call("add", a=1)
    assert talk(again, again, max_turns=2)[0].status is GenerationStatus.TRUNCATED
    found, _ = talk(again, max_turn_tokens=5)
    assert (found.status, len(found.response_ids)) == (GenerationStatus.TRUNCATED, 5)
    assert talk("hm", max_tokens=50)[0].failure == "no_room", "the tools alone take more"


def test_a_prompt_of_text_is_refused_before_anything_starts() -> None:
    chat, text = Prompt(prompt_id="p", text=QUESTION), Prompt(prompt_id="q", text="2 + 3?")
    made = generator()
    assert isinstance(made, CheckingGenerator)
    made.check([chat], ByteTokenizer())
    with pytest.raises(DataError, match="'q' is a text, and --generator tools needs a chat"):
        made.check([chat, text], ByteTokenizer())


def test_a_template_without_tools_is_refused_before_anything_starts() -> None:
    class Plain(ByteTokenizer):
        chat_template = "{{ messages }}"

    with pytest.raises(ModelError, match=r"no tool calls in a known format.*name one by --generator\.format"):
        generator().check([], Plain())
    generator(format="glm").check([], Plain())


def test_the_schema_comes_from_hints_and_docstring() -> None:
    assert load("mytools:add").schema["function"] == {
        "name": "add",
        "description": "Add two lengths.",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "description": "the first one"},
                "b": {
                    "type": "integer",
                    "description": "the second one, which may be left out",
                    "default": 1,
                },
                "unit": {
                    "type": "string",
                    "enum": ["m", "km"],
                    "description": "what they are measured in",
                    "default": "m",
                },
            },
            "required": ["a"],
            "additionalProperties": False,
        },
    }


@cases("tools")
def test_what_is_no_tool_is_refused(case: Case) -> None:
    with case.refused(ConfigError):
        Tools(ToolsConfig(function=(case.given,)))


def test_some_tool_is_expected_and_no_name_twice() -> None:
    with pytest.raises(ValueError, match="there is no tool"):
        ToolsConfig()
    with pytest.raises(ConfigError, match="two tools have the name 'add'"):
        Tools(ToolsConfig(function=("mytools:add", "mytools:add")))


def test_without_the_sdk_the_pip_line_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"pip install .mcp>=2"):
        Tools(ToolsConfig(mcp=("http://127.0.0.1:1/mcp",)))
