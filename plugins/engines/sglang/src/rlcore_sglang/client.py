"""`SglangClient`: rlcore's protocol where SGLang differs from it."""

from collections.abc import Mapping
from typing import Any

from rlcore import Completion, EngineClient, EngineError, Request
from rlcore_sglang.adapters import POLICY


class SglangClient(EngineClient):
    """The client of a real SGLang server."""

    async def _features(self) -> Mapping[str, Any]:
        """SGLang names no abilities: they follow from its settings, and from the paths of its OpenAPI."""
        info = await self.server_info()
        paths = (await self._answer("/openapi.json", "paths"))["paths"]
        # SGLang honors the seed of a request under deterministic inference only, and ends there when asked
        # for min-p.
        abilities = ["seeds" if info.get("enable_deterministic_inference") else "min_p"]
        abilities += ["policies"] if info.get("enable_lora") else []
        ranks = info.get("tp_size") or 1
        return {**info, "capabilities": list(paths), "abilities": abilities, "tensor_ranks": ranks}

    async def load_adapters(self, path: str, adapters: Mapping[str, Mapping[str, Any]], version: int) -> None:
        """Put the adapters that the server loads at `path` in the place of those before.

        `adapters`: the fields of that request, by policy. Call it while no request is under way: SGLang
        unloads an adapter once its last request has ended.
        """
        names = [model["id"] for model in (await self._answer("/v1/models", "data"))["data"]]
        for policy, adapter in adapters.items():
            name = policy or POLICY
            if name in names:
                await self.update("/unload_lora_adapter", {"lora_name": name})
            await self.update(path, {"lora_name": name, **adapter})
        await self.update(
            "/update_weight_version", {"new_version": str(version), "abort_all_requests": False}
        )

    async def _policy(self, name: str) -> dict[str, str]:
        """Which adapter answers: SGLang takes the base where a request names none."""
        if (await self.capabilities()).policies:
            return {"lora_path": name or POLICY}
        if name:
            raise EngineError(
                f"A request names the adapter {name!r}, but the engine at {self.url} has none; train with "
                f"--lora.publish adapter, and start it with --sglang.lora-paths {name}=DIR."
            )
        return {}

    async def _generate_body(self, request: Request) -> dict[str, Any]:
        """Each sample's id ends in a slash: SGLang aborts every request whose id *starts* with one."""
        body = await super()._generate_body(request)
        ids = body["rid"]
        return {**body, "rid": f"{ids}/" if isinstance(ids, str) else [f"{one}/" for one in ids]}

    def _completion(self, answer: Mapping[str, Any], **known: Any) -> Completion:
        """SGLang before 0.5.23, and each abort before the first token, gives one version without a start."""
        meta = answer["meta_info"]
        versions = meta.get("weight_versions") or [{"start": 0, "version": meta.get("weight_version")}]
        answer = {**answer, "meta_info": {**meta, "weight_versions": versions}}
        return super()._completion(answer, **known)
