"""Give a shared server the weights that it was started with."""

from pathlib import Path

from rlcore.engines.client import EngineClient


async def start_over(client: EngineClient, model: Path) -> None:
    """`model` again, as version 0. Flushed apart, by retries: SGLang refuses it just after a response."""
    await client.update_from_disk(str(model), 0, flush=False)
    await client.flush_cache()
