"""The endpoints beside `/generate`: health, information, weights, pausing, memory."""

from collections.abc import Callable
from functools import partial

from aiohttp import web

from rlcore import __version__
from rlcore_local import bodies
from rlcore_local.app import ABILITIES, Handler, information, parse
from rlcore_local.groups import Groups, JoinBody, LeaveBody, ReceiveBody
from rlcore_local.requests import RequestError, parse_generate
from rlcore_local.service import Service


class Controls:
    """The handlers, by path in `routes`."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.scheduler = service.scheduler
        self.groups = Groups()

    def routes(self) -> dict[str, Handler]:
        """Every path with its handler."""
        return {
            **information(self.health_generate, self.server_info, self.model_info),
            "/v1/loads": self.loads,
            "/update_weights_from_disk": self.update_from_disk,
            "/update_weights_from_shared_memory": self.update_from_shared_memory,
            "/update_weights_from_delta": self.update_from_delta,
            "/init_weights_update_group": self.join_group,
            "/destroy_weights_update_group": self.leave_group,
            "/update_weights_from_distributed": self.update_from_broadcast,
            "/begin_weight_update": partial(self.hold, True),
            "/end_weight_update": partial(self.hold, False),
            "/weights_checker": self.check_weights,
            "/abort_request": self.abort,
            "/pause_generation": self.pause,
            "/continue_generation": self.resume,
            "/flush_cache": self.flush,
            "/release_memory_occupation": self.release,
            "/resume_memory_occupation": self.reclaim,
        }

    async def health_generate(self, _: web.Request) -> web.Response:
        """Whether a token can be made; where generation is held on purpose, whether the thread answers."""
        if self.scheduler.is_held:
            await self.service.call(lambda: None)
            return web.Response()
        params = {"max_new_tokens": 1, "temperature": 0.0}
        await self.service.answers(parse_generate({"input_ids": [0], "sampling_params": params}))
        return web.Response()

    async def server_info(self, _: web.Request) -> web.Response:
        """What is served, what this server can do, and what it has done, as the scheduler's thread tells."""
        scheduler, settings = self.scheduler, self.service.settings
        running, waiting = await self.service.call(scheduler.counts)
        return web.json_response(
            {
                **settings.model_dump(mode="json"),
                "engine": "local",
                "abilities": ABILITIES,
                "version": __version__,
                "model_path": str(self.service.model_path),
                "weight_version": scheduler.weight_version,
                "context_length": self.service.context_length,
                "decoder": scheduler.weights.path,
                **{f"enable_return_{column}": True for column in scheduler.weights.choices.columns},
                "capabilities": sorted(path.strip("/") for path in self.routes()),
                "paused": scheduler.is_held,
                "requests": {"running": running, "waiting": waiting, "finished": scheduler.finished_count},
                "generated_tokens": scheduler.token_count,
            }
        )

    async def loads(self, _: web.Request) -> web.Response:
        """How many samples run and wait, as SGLang says it: for each data-parallel rank, which is one."""
        running, waiting = await self.service.call(self.scheduler.counts)
        return web.json_response({"loads": [{"num_running_reqs": running, "num_waiting_reqs": waiting}]})

    async def model_info(self, _: web.Request) -> web.Response:
        """What is served."""
        config = self.scheduler.weights.model.config
        return web.json_response(
            {
                "model_path": str(self.service.model_path),
                "tokenizer_path": str(self.service.settings.model_path),
                "is_generation": True,
                "weight_version": self.scheduler.weight_version,
                "model_type": config.model_type,
                "architectures": config.architectures,
            }
        )

    async def _update(self, body: bodies.UpdateBody, change: Callable[[], None], name: str) -> web.Response:
        """Do an update between two steps; a refused one changes nothing."""

        def run() -> None:
            if body.abort_all_requests:
                self.scheduler.abort(None)
            self.scheduler.change_weights(change, body.weight_version, body.flush_cache)

        try:
            await self.service.call(run)
        except RequestError as error:
            return _outcome(False, str(error))
        return _outcome(True, f"Succeeded to update model weights from {name}.")

    async def update_from_disk(self, request: web.Request) -> web.Response:
        """Weights of another directory."""
        body = await parse(request, bodies.DiskBody)
        weights = self.scheduler.weights
        response = await self._update(body, lambda: weights.update_from_disk(body.model_path), "disk")
        if response.status == 200:
            self.service.model_path = body.model_path
        return response

    async def update_from_shared_memory(self, request: web.Request) -> web.Response:
        """Weights of a file that another process of this machine wrote."""
        body = await parse(request, bodies.SharedBody)
        path = self.service.shared_file(body.path)
        weights = self.scheduler.weights
        return await self._update(body, lambda: weights.update_from_file(path, body.layout), "shared memory")

    async def update_from_delta(self, request: web.Request) -> web.Response:
        """What has changed since the version that is held."""
        body = await parse(request, bodies.DeltaBody)
        path, scheduler = self.service.shared_file(body.path), self.scheduler

        def change() -> None:
            # Between two steps, since an update that is still waiting may name another version.
            scheduler.weights.update_from_delta(path, scheduler.weight_version)

        return await self._update(body, change, "changes")

    async def join_group(self, request: web.Request) -> web.Response:
        """Meet a trainer that will broadcast weights."""
        await self.groups.join(await parse(request, JoinBody))
        return _outcome(True, "Succeeded to initialize custom process group.")

    async def leave_group(self, request: web.Request) -> web.Response:
        """Forget a trainer."""
        self.groups.leave(await parse(request, LeaveBody))
        return _outcome(True, "Succeeded to destroy custom process group.")

    async def update_from_broadcast(self, request: web.Request) -> web.Response:
        """Some weights, which a trainer broadcasts; within an update, so that no step is made meanwhile."""
        body = await parse(request, ReceiveBody)
        if not self.scheduler.updating:
            return _outcome(False, "It must stand between begin_weight_update and end_weight_update.")
        received = await self.groups.receive(body)
        weights = self.scheduler.weights
        return await self._update(body, lambda: weights.update_from_tensors(received), "a broadcast")

    async def hold(self, updating: bool, request: web.Request) -> web.Response:
        """Open or close an update that comes in several parts."""
        await parse(request, bodies.SelectorBody)

        def run() -> bool:
            changed = self.scheduler.updating != updating
            self.scheduler.updating = updating
            return changed

        if await self.service.call(run):
            return _outcome(True, "Success")
        return _outcome(False, f"A weight update is {'already' if updating else 'not'} in progress.")

    async def check_weights(self, request: web.Request) -> web.Response:
        """A checksum of each tensor, in SGLang's shape: one rank."""
        await parse(request, bodies.CheckBody)
        checksums = await self.service.call(self.scheduler.weights.checksums)
        return web.json_response({"success": True, "message": "Success", "ranks": [{"checksums": checksums}]})

    async def abort(self, request: web.Request) -> web.Response:
        """End requests; each is answered with what it has."""
        body = await parse(request, bodies.AbortBody)
        rids = None if body.abort_all else {body.rid or ""}
        await self.service.call(lambda: self.scheduler.abort(rids))
        return web.Response()

    async def pause(self, request: web.Request) -> web.Response:
        """Stop stepping until `/continue_generation`."""
        body = await parse(request, bodies.PauseBody)
        await self.service.call(lambda: self.scheduler.pause(body.mode))
        return web.json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def resume(self, request: web.Request) -> web.Response:
        """Step again."""
        await parse(request, bodies.ContinueBody)
        await self.service.call(self.scheduler.resume)
        return web.json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def flush(self, _: web.Request) -> web.Response:
        """Drop cached keys and values; refused while samples run."""
        await self.service.call(self.scheduler.flush)
        return web.Response(text="Cache flushed.\n")

    async def release(self, request: web.Request) -> web.Response:
        """Give memory back; refused while there are requests."""
        parts = (await parse(request, bodies.MemoryBody)).parts
        await self.service.call(lambda: self.scheduler.release(parts))
        return web.json_response(None)

    async def reclaim(self, request: web.Request) -> web.Response:
        """Undo `release`."""
        parts = (await parse(request, bodies.MemoryBody)).parts
        await self.service.call(lambda: self.scheduler.reclaim(parts))
        return web.json_response(None)


def _outcome(success: bool, message: str) -> web.Response:
    return web.json_response({"success": success, "message": message}, status=200 if success else 400)
