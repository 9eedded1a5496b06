"""The tracker `wandb`."""

import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlcore import ConfigError, Json, RunInfo, Sample, Tracker
from rlcore_toolkit import SampleView, require_packages
from rlcore_wandb.config import WandbConfig

ID = Path("wandb") / "id"
"""In the run's folder: by what Weights & Biases knows the run."""


class Wandb(Tracker):
    """Logs to one run of Weights & Biases."""

    def __init__(self, config: WandbConfig) -> None:
        """Raises `MissingPackageError` without wandb or matplotlib.

        Raises `ConfigError` where wandb would ask for an account.
        """
        require_packages("--tracker wandb", "rlcore-wandb[client]", "wandb", "matplotlib")
        self._config = config
        self._mode: Any = config.mode or os.environ.get("WANDB_MODE") or "online"
        if self._mode == "online" and not _has_account():
            raise ConfigError(
                "--tracker wandb: found no account; run wandb login, set WANDB_API_KEY, or add "
                "--tracker.wandb.mode offline."
            )
        self._run: Any

    def start(self, run: RunInfo) -> None:
        """A resumed run goes on in the same one."""
        import wandb

        config = self._config
        self._run = wandb.init(
            project=config.project,
            entity=config.entity or None,
            name=config.run_name or run.folder.name,
            group=config.group or None,
            tags=config.tags,
            dir=str(run.folder),
            id=_id_of(run.folder),
            resume="allow" if self._mode == "online" else None,
            mode=self._mode,
            config={**run.settings, "plugins": dict(run.plugins)},
            # The command line may hold what the settings hide, and the screen is the run's own.
            settings=wandb.Settings(console="off", x_disable_meta=True, disable_git=True, save_code=False),
        )
        # The step is a metric: a resumed run takes some again, and wandb's own steps only grow.
        self._run.define_metric("*", step_metric="step")

    def metrics(self, step: int, metrics: Mapping[str, Json]) -> None:
        """Every number under its name."""
        self._run.log({name: value for name, value in metrics.items() if isinstance(value, int | float)})

    def evaluation(self, step: int, samples: Mapping[str, Sequence[Sample]]) -> None:
        """The first answers of each set as a table, and a picture of its rewards and lengths."""
        shown: dict[str, Any] = {}
        for name, of_set in samples.items():
            shown |= self._shown(name, SampleView(of_set))
        self._run.log({"step": step, **shown})

    def rollout(self, step: int, samples: Sequence[Sample]) -> None:
        """Histograms of the rewards and of the lengths; of a saved rollout, what an evaluated set has."""
        import wandb

        view = SampleView(samples)
        shown: dict[str, Any] = {
            f"distribution/{name}": wandb.Histogram(values) for name, values in view.distributions.items()
        }
        if view.saved:
            shown |= self._shown("rollout", view)
        if shown:
            self._run.log({"step": step, **shown})

    def end(self, reason: str) -> None:
        """Everything is sent, or on the disk, afterwards, and wandb's service has ended."""
        import wandb

        self._run.summary["exit_reason"] = reason
        code = int(reason == "failed")
        self._run.finish(exit_code=code)
        # wandb would end its service when this process exits. The run ends it before, and wandb complains.
        wandb.teardown(code)

    def _shown(self, name: str, view: SampleView) -> dict[str, Any]:
        import matplotlib.pyplot  # noqa: F401  # wandb.Image relies on it
        import wandb

        shown: dict[str, Any] = {}
        if view.distributions:
            shown[f"pictures/{name}"] = wandb.Image(view.figure())
        if self._config.samples:
            rows = view.rows(self._config.samples)
            shown[f"samples/{name}"] = wandb.Table(columns=list(view.COLUMNS), data=rows)
        return shown


def _has_account() -> bool:
    import wandb

    # asks nobody and no server: whether there is a key
    return bool(wandb.login(prompt=False))


def _id_of(folder: Path) -> str:
    """The id of the run in `folder`, whose first start chooses it."""
    path = folder / ID
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(uuid.uuid4().hex[:12])
    return path.read_text().strip()
