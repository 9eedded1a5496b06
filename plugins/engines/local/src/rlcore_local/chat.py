"""`/v1/chat/completions`: as much of OpenAI's protocol as a judge needs. No streams, tools or images."""

import time
import uuid
from typing import Any

from aiohttp import web
from pydantic import Field

from rlcore_local.app import parse
from rlcore_local.bodies import Body
from rlcore_local.requests import RequestError, parse_generate
from rlcore_local.service import Service


class Message(Body):
    """One message."""

    role: str
    content: str


class ChatBody(Body):
    """What is accepted; `model` is any name, for one model is served. `max_tokens` null: all that fits."""

    model: str
    messages: list[Message] = Field(min_length=1)
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int | None = Field(None, ge=1)
    seed: int | None = None
    stop: str | list[str] | None = None
    n: int = 1


class Chat:
    """The handler. A body of another form is refused (400) with the reason."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def handle(self, request: web.Request) -> web.Response:
        """The answers to a chat, by the model's own template."""
        body = await parse(request, ChatBody)
        prompt = self._prompt(body.messages)
        params = body.model_dump(include={"temperature", "top_p", "stop", "n"})
        params |= {"max_new_tokens": body.max_tokens, "sampling_seed": body.seed}
        answers = await self.service.answers(parse_generate({"input_ids": prompt, "sampling_params": params}))
        completion = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": body.model,
            "choices": [_choice(index, answer) for index, answer in enumerate(answers)],
            "usage": _usage(len(prompt), answers),
        }
        return web.json_response(completion)

    def _prompt(self, messages: list[Message]) -> list[int]:
        tokenizer = self.service.tokenizer
        if tokenizer is None or tokenizer.chat_template is None:
            raise RequestError("messages: the model has no chat template, use /generate")
        try:
            text = tokenizer.apply_chat_template(
                [message.model_dump() for message in messages], add_generation_prompt=True, tokenize=False
            )
        except (
            Exception
        ) as error:  # a template raises jinja2's own errors, of a role that it does not know too
            raise RequestError(f"messages: the model's chat template refuses them: {error}") from error
        # The template has put the special tokens there.
        return list(tokenizer.encode(str(text), add_special_tokens=False))


def _choice(index: int, answer: dict[str, Any]) -> dict[str, Any]:
    return {
        "index": index,
        "message": {"role": "assistant", "content": answer["text"]},
        "finish_reason": answer["meta_info"]["finish_reason"]["type"],
    }


def _usage(prompt: int, answers: list[dict[str, Any]]) -> dict[str, int]:
    made = sum(answer["meta_info"]["completion_tokens"] for answer in answers)
    return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}
