"""`SglangClient`: rlcore's protocol where SGLang differs from it."""

from collections.abc import Mapping
from typing import Any

from rlcore import Completion, EngineClient, Request


class SglangClient(EngineClient):
    """The client of a real SGLang server."""

    async def _features(self) -> Mapping[str, Any]:
        """SGLang names no abilities: they follow from its settings, and from the paths of its OpenAPI."""
        info = await self.server_info()
        paths = (await self._told("/openapi.json", "paths"))["paths"]
        # SGLang honors the seed of a request under deterministic inference only, and ends there when asked
        # for min-p.
        ability = "seeds" if info.get("enable_deterministic_inference") else "min_p"
        ranks = info.get("tp_size") or 1
        return {**info, "capabilities": list(paths), "abilities": [ability], "tensor_ranks": ranks}

    async def _generate_body(self, request: Request) -> dict[str, Any]:
        """Each sample's id ends in a slash: SGLang aborts every request whose id *starts* with one."""
        body = await super()._generate_body(request)
        ids = body["rid"]
        return {**body, "rid": f"{ids}/" if isinstance(ids, str) else [f"{one}/" for one in ids]}

    def _completion(self, answer: Mapping[str, Any], *, prompt_tokens: int) -> Completion:
        """SGLang before 0.5.23, and each abort before the first token, gives one version without a start."""
        meta = answer["meta_info"]
        versions = meta.get("weight_versions") or [{"start": 0, "version": meta.get("weight_version")}]
        answer = {**answer, "meta_info": {**meta, "weight_versions": versions}}
        return super()._completion(answer, prompt_tokens=prompt_tokens)
