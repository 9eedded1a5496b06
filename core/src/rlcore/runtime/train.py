"""`train`: one run from its configuration to its summary."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from rlcore.api.errors import RlcoreError
from rlcore.compose.resolved import Resolved
from rlcore.preparation.run_folder import run_folder, write_settings
from rlcore.runtime.connect import connect, opened
from rlcore.tracking.display import STOPPING, Display, Summary
from rlcore.tracking.run_files import restore_metrics
from rlcore_machine.signals import Terminated, signals_raise


def train(resolved: Resolved, *, run_dir: Path | None, resume: Path | None, display: Display) -> Summary:
    """Run it, in the main thread.

    `run_dir`: a folder that is new or empty; None makes one in `runs`.
    `resume`: the run folder (then `run_dir` is the same) whose newest checkpoint goes on, if there is one.

    Raises `UserError` before the cluster starts processes of the run, afterwards `RunError` or a part's
    `PluginError`, and `Terminated` or KeyboardInterrupt for a signal before the processes. In every case it
    stops everything that it started.
    """
    begin = time.monotonic()
    parts = (resolved.trainer, resolved.engine)
    # `_stop_shown` comes last, so that it speaks before the cluster is closed.
    with (
        ExitStack() as held,
        signals_raise(),
        opened(resolved.cluster, parts) as (cluster, reaper),
        _stop_shown(display),
    ):
        # Torch comes with these. Meanwhile the cluster imports what its processes need.
        from rlcore.preparation.prepare import prepare
        from rlcore.preparation.provenance import Provenance, compared
        from rlcore.runtime.resume import first_state, newest_checkpoint, resumed_state
        from rlcore.runtime.run_processes import RunProcesses
        from rlcore.serving.placement import bundles_of, cpus_of, place

        # An error in here removes the folder again; a run that has begun keeps it.
        name = f"{resolved.algorithm}-{Path(resolved.model.name).name}"
        with run_folder(run_dir, held, name, resume=resume is not None) as folder:
            display.phase("Checking the model, the data and the parts")
            checkpoint, note = newest_checkpoint(folder) if resume is not None else (None, None)
            if note:
                display.note(note)
            prepared = prepare(resolved, folder.resolve(), checkpoint)
            display.expect(prepared.last_step, folder)
            if note := resolved.trainer.config.left_out(resolved.trainer_fields, prepared.hf_config):
                display.note(note)
            if resolved.evals and not prepared.evals:
                display.note("--eval has no effect: this run evaluates nothing. Use rlcore eval.")
            state = first_state(prepared) if checkpoint is None else resumed_state(prepared, checkpoint)
            provenance = Provenance.of(resolved)
            if checkpoint is not None and (note := compared(provenance, folder, state.step)):
                display.note(note)
            if checkpoint is not None and (note := restore_metrics(folder, checkpoint)):
                display.note(note)
            write_settings(folder, resolved, provenance, state.step)
            display.phase(f"Connecting to the cluster {resolved.cluster.name}")
            connect(cluster, reaper, cpus=cpus_of(bundles_of(prepared)))
            placement = place(cluster, prepared)
        processes = RunProcesses(
            prepared=prepared,
            state=state,
            cluster=cluster,
            reaper=reaper,
            placement=placement,
            display=display,
        )

        def summary(reason: str) -> Summary:
            seconds = round(time.monotonic() - begin, 3)
            return Summary(str(folder), processes.steps, seconds, processes.scores, reason)

        try:
            reason = asyncio.run(processes.run())
        except RlcoreError as error:
            error.summary = asdict(summary("failed"))  # scripts read the last line of a failed run as well
            raise
    return summary(reason)


@contextlib.contextmanager
def _stop_shown(display: Display) -> Iterator[None]:
    """Show at once that the run ends, since that takes a while."""
    try:
        yield
    except (KeyboardInterrupt, Terminated):
        display.phase(STOPPING)
        raise
