"""The suites of what a run has beside its batches: each property fails for a part that lacks it."""

import itertools
import random
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import click
import pytest
import torch
from broken_parts import all_fails, lacks
from pydantic import Field

from rlcore.api.batch import TrainBatch
from rlcore.api.callback import Callback, RunControl
from rlcore.api.config import Config
from rlcore.api.model_hook import ModelHook, ModelView
from rlcore.api.part import Part
from rlcore.api.part_config import PartConfig, ProducerConfig
from rlcore.api.producer import Producer, ProducerContext, Rollout
from rlcore.api.records import Algorithm, Component
from rlcore.api.tracker import RunInfo, Tracker
from rlcore.api.types import Json
from rlcore_sampling.producers import synchronous_producer
from rlcore_testing.algorithms import AlgorithmConformance
from rlcore_testing.callbacks import CallbackConformance
from rlcore_testing.commands import CommandConformance
from rlcore_testing.conformance import Outcome, Subject
from rlcore_testing.model_hooks import ModelHookConformance
from rlcore_testing.parts import PartConformance
from rlcore_testing.producers import ProducerConformance
from rlcore_testing.suites import check
from rlcore_testing.trackers import TrackerConformance

CALLS = itertools.count()
STOP = RunControl(stop="bad")
RESUMED_CALLBACK = "a resumed run is steered as the other would have been"


def lacking(base: type[Any], **methods: Any) -> type[Any]:
    """`base` with other methods, which leave it without a property."""
    return type("Lacking", (base,), methods)


# --- callbacks -----------------------------------------------------------------------------------------


class Slower(Callback):
    """Halves the learning rate at each third step."""

    def __init__(self) -> None:
        self.scale, self.seen = 1.0, 0

    def after_step(self, step: int, metrics: Mapping[str, Json]) -> RunControl | None:
        self.seen += 1
        if self.seen % 3:
            return None
        self.scale /= 2
        return RunControl(lr_scale=self.scale)

    def state(self) -> Json:
        return {"scale": self.scale, "seen": self.seen}

    def load(self, state: Json) -> None:
        self.scale, self.seen = state["scale"], state["seen"]


def late(callback: Slower) -> Json:
    """Has a state once it was asked."""
    assert callback.seen, "nothing was asked"
    return Slower.state(callback)


def adds(callback: Callback, step: int, metrics: dict[str, Json]) -> None:
    metrics["mine"] = 1


@pytest.mark.parametrize(
    ("callback", "missing"),
    [
        (Slower, ""),
        (lacking(Slower, state=lambda self: None, load=lambda self, state: None), RESUMED_CALLBACK),
        (lacking(Slower, state=lambda self: {"seen": {self.seen}}), RESUMED_CALLBACK),
        (lacking(Slower, state=late), "it is asked of nothing before the first step"),
        (
            lacking(Callback, after_step=lambda self, step, row: STOP if row["train/loss"] > 1 else None),
            "a step that trained nothing does not stop it",
        ),
        (
            lacking(Callback, after_step=lambda self, step, metrics: RunControl(lr_scale=-1.0)),
            "it asks for what a run can do",
        ),
        (lacking(Callback, after_step=lambda self, step, metrics: True), "it asks for what a run can do"),
        (
            lacking(Callback, after_evaluation=lambda self, step, row: RunControl(lr_scale=random.random())),
            "it says the same again",
        ),
        (lacking(Callback, after_step=adds), "it leaves the metrics as they are"),
    ],
)
def test_a_callback_that_lacks_a_property(callback: type[Callback], missing: str) -> None:
    class Suite(CallbackConformance):
        def callback(self) -> Callback:
            return callback()

    lacks(Suite, missing)


# --- trackers ------------------------------------------------------------------------------------------


class Quiet(Tracker):
    pass


class Numbers(Tracker):
    def metrics(self, step: int, metrics: Mapping[str, Json]) -> None:
        for value in metrics.values():
            float(value)


class Early(Tracker):
    def __init__(self) -> None:
        threading.Thread(target=time.sleep, args=(0.2,), daemon=True).start()


class Staying(Tracker):
    def start(self, run: RunInfo) -> None:
        self.go = threading.Event()
        threading.Thread(target=self.go.wait, args=(5.0,)).start()


class Closing(Tracker):
    def start(self, run: RunInfo) -> None:
        self.rows: list[int] = []

    def metrics(self, step: int, metrics: Mapping[str, Json]) -> None:
        self.rows.append(step)

    def end(self, reason: str) -> None:
        assert self.rows[-1] >= 0


class Once(Tracker):
    def start(self, run: RunInfo) -> None:
        (run.folder / "mine").mkdir()


class Tagging(Tracker):
    def metrics(self, step: int, metrics: Mapping[str, Json]) -> None:
        metrics.pop("time/step_s", None)  # type: ignore[attr-defined] # that is the fault


class Missing(Tracker):
    def checkpoint(self, step: int, folder: Path) -> None:
        (folder / "metadata.json").read_text()


@pytest.mark.parametrize(
    ("tracker", "missing"),
    [
        (Quiet, ""),
        (Numbers, "it takes any value of a metric"),
        (Early, "building it starts nothing"),
        (Staying, "it does not hold up the end of a run"),
        (Closing, "a run may end before its first step"),
        (Once, "it goes on with a resumed run"),
        (Tagging, "it leaves what it is told as it is"),
        (Missing, "it follows a whole run"),
    ],
)
def test_a_tracker_that_lacks_a_property(tracker: type[Tracker], missing: str) -> None:
    class Suite(TrackerConformance):
        def tracker(self) -> Tracker:
            return tracker()

    lacks(Suite, missing)


# --- model hooks ---------------------------------------------------------------------------------------


def on_each(method: str, change: Callable[[str, torch.nn.Parameter], Any]) -> type[ModelHook]:
    """A hook whose `method` does this with each parameter, by its name."""

    @torch.no_grad()
    def changes(self: ModelHook, *arguments: Any) -> None:
        for name, one in arguments[-1].parameters.items():
            change(name, one)

    return lacking(ModelHook, **{method: changes})


def freezes_its_first(hook: ModelHook, model: ModelView) -> None:
    next(iter(model.parameters.values())).requires_grad_(False)


def doubles(hook: ModelHook, model: ModelView) -> None:
    for module in model.modules:
        module.register_forward_hook(lambda module, args, output: 2 * output)


def needs_a_gradient(name: str, one: torch.nn.Parameter) -> None:
    assert one.grad is not None


@pytest.mark.parametrize(
    ("hook", "missing"),
    [
        (on_each("built", lambda name, one: one.requires_grad_("norm" not in name)), ""),
        (on_each("built", lambda name, one: one.requires_grad_(False)), "something is left to train"),
        (
            on_each("built", lambda name, one: one.mul_(2) if "norm" in name else one),
            "the weights stay those of the directory",
        ),
        (
            on_each("built", lambda name, one: one.requires_grad_(random.random() < 0.5)),
            "it does the same again",
        ),
        (lacking(ModelHook, built=freezes_its_first), "pipeline stages agree with the whole model"),
        (on_each("before_step", lambda name, one: one.clamp_(-0.01, 0.01)), "steps leave the weights alone"),
        (on_each("before_step", needs_a_gradient), "steps leave the weights alone"),
        (lacking(ModelHook, built=doubles), "the policy computes as before"),
    ],
)
def test_a_model_hook_that_lacks_a_property(hook: type[ModelHook], missing: str) -> None:
    class Suite(ModelHookConformance):
        def hook(self) -> ModelHook:
            return hook()

    lacks(Suite, missing)


# --- producers -----------------------------------------------------------------------------------------


class Wrapped:
    """What core's own makes."""

    samples = True

    def __init__(self, config: Config, context: ProducerContext) -> None:
        self._inner: Producer = synchronous_producer(config, context)
        self.publication, self.published = self._inner.publication, self._inner.published
        self.suspended, self.state, self.load = self._inner.suspended, self._inner.state, self._inner.load

    def changed(self, rollout: Rollout) -> Rollout:
        return rollout

    async def run(self, done: int, steps: int) -> AsyncGenerator[Rollout, None]:
        async with aclosing(self._inner.run(done, steps)) as rollouts:
            async for rollout in rollouts:
                yield self.changed(rollout)


def changing(change: Callable[[Any, Rollout], Mapping[str, Any]]) -> type[Wrapped]:
    """A producer whose rollouts have other fields."""
    kind = lacking(Wrapped, changed=lambda self, rollout: replace(rollout, **change(self, rollout)))
    kind.__name__ = f"Changing{next(CALLS)}"
    globals()[kind.__name__] = kind
    return kind


def torn(producer: Wrapped, rollout: Rollout) -> Mapping[str, Any]:
    return {"groups": tuple(replace(one, samples=one.samples[1:]) for one in rollout.groups)}


def repeating(producer: Any, rollout: Rollout) -> Mapping[str, Any]:
    producer.kept = getattr(producer, "kept", rollout.groups[:1])
    return {"groups": (*producer.kept, *rollout.groups[1:])}


class Restarting(Wrapped):
    def __init__(self, config: Config, context: ProducerContext) -> None:
        super().__init__(config, context)
        self.load = lambda state: None


class Losing(Wrapped):
    """Forgets where it was when a checkpoint is made."""

    def __init__(self, config: Config, context: ProducerContext) -> None:
        super().__init__(config, context)
        self.begin, self.suspended = self._inner.state(), self._restarted

    @asynccontextmanager
    async def _restarted(self) -> AsyncGenerator[Any, None]:
        async with self._inner.suspended() as found:
            yield found
        self._inner.load(self.begin)


class Short(Wrapped):
    async def run(self, done: int, steps: int) -> AsyncGenerator[Rollout, None]:
        async with aclosing(super().run(done, steps - 1)) as rollouts:
            async for rollout in rollouts:
                yield rollout


class BatchesConfig(ProducerConfig):
    makes_batches: ClassVar[bool] = True

    def last_step(self) -> int:
        return 2


class Batches:
    """Step n trains on the token n. It is promised no engine, and asks for none."""

    samples = False

    def __init__(self, config: Config, context: ProducerContext) -> None:
        assert not context.clients
        assert context.vocabulary is None
        self.load: Any = lambda state: None

    @asynccontextmanager
    async def publication(self, version: int) -> AsyncGenerator[None, None]:
        yield

    @asynccontextmanager
    async def suspended(self) -> AsyncGenerator[None, None]:
        yield

    def state(self) -> Json:
        return {}

    def token(self, step: int) -> int:
        return step

    async def run(self, done: int, steps: int) -> AsyncGenerator[Rollout, None]:
        for step in range(done + 1, steps + 1):
            assert step <= 2, "no more rollouts"
            batch = TrainBatch(
                tokens=torch.tensor([0, self.token(step)]),
                prompt_lengths=torch.ones(1, dtype=torch.int64),
                response_lengths=torch.ones(1, dtype=torch.int64),
                per_sample=self.columns(),
            )
            metrics = {"time/rollout_s": 0.0, "rollout/response_tokens": 1.0}
            yield Rollout(step=step, version=step - 1, groups=(), metrics=metrics, batch=batch)

    def columns(self) -> dict[str, torch.Tensor]:
        return {"rollout": torch.zeros(1, dtype=torch.int64)}


class WithoutRollouts(Batches):
    def columns(self) -> dict[str, torch.Tensor]:
        return {}


class RandomBatches(Batches):
    def token(self, step: int) -> int:
        return next(CALLS)


class RestartingBatches(Batches):
    """Begins anew after a resume."""

    made = 0

    def token(self, step: int) -> int:
        self.made += 1
        return self.made


class BatchesOfCheckpoints(RestartingBatches):
    """Skips one at a checkpoint."""

    @asynccontextmanager
    async def suspended(self) -> AsyncGenerator[None, None]:
        self.made += 1
        yield


@pytest.mark.parametrize(
    ("producer", "missing"),
    [
        (Batches, ""),
        (WithoutRollouts, "each step has a rollout"),
        (RandomBatches, "it says the same again"),
        (RestartingBatches, "a resumed run loses no prompt"),
        (BatchesOfCheckpoints, "a checkpoint on the way changes nothing"),
    ],
)
def test_a_producer_of_batches_that_lacks_a_property(producer: type[Batches], missing: str) -> None:
    part = Part(name="mine", factory=f"{__name__}:{producer.__name__}", config=BatchesConfig())
    lacks(ProducerConformance.of(Subject(record=None, part=part)), missing)


@pytest.mark.parametrize(
    ("producer", "missing"),
    [
        (Wrapped, ""),
        (changing(lambda self, rollout: {"groups": rollout.groups[:2]}), ""),
        (Short, "each step has a rollout"),
        (
            changing(lambda self, rollout: {"metrics": {"rollout/response_tokens": 1}}),
            "each step has a rollout",
        ),
        (changing(torn), "groups are whole"),
        (changing(lambda self, rollout: {"groups": rollout.groups[::-1]}), "groups come by their ids"),
        (changing(repeating), "no prompt comes twice in an epoch"),
        (
            changing(lambda self, rollout: {"metrics": {**rollout.metrics, "rollout/mine": random.random()}}),
            "it says the same again",
        ),
        (
            changing(lambda self, rollout: {"version": rollout.version + 3}),
            "weights are at most as old as the run allows",
        ),
        (Restarting, "a resumed run loses no prompt"),
        (Losing, "a checkpoint on the way changes nothing"),
    ],
)
def test_a_producer_that_lacks_a_property(producer: type[Wrapped], missing: str) -> None:
    factory = f"{__name__}:{producer.__name__}"
    subject = Subject(record=None, part=Part(name="mine", factory=factory, config=ProducerConfig()))
    lacks(ProducerConformance.of(subject), missing)


# --- recipes -------------------------------------------------------------------------------------------


def recipe(**changes: Any) -> Algorithm:
    known: dict[str, Any] = {
        "name": "mine",
        "summary": "a recipe",
        "paper": "https://arxiv.org/abs/2402.03300",
        "parts": {"advantage": "grpo", "loss": "ppo_clip"},
    }
    return Algorithm(**{**known, **changes})


@pytest.mark.parametrize(
    ("algorithm", "missing"),
    [
        (recipe(), ""),
        (recipe(paper=""), "it says what it is"),
        (recipe(parts={"advantage": "grpo", "loss": "ppo_clap"}), "its parts are installed"),
        (recipe(parts={"advantage": "grpo"}), "it names what a run needs"),
        (recipe(settings={"lr": -1.0}), "its settings are valid"),
        (recipe(tables={"loss": {"clip_hi": 0.2}}), "its tables are valid"),
        (recipe(tables={"loss": {"clip_high": "much"}}), "its tables are valid"),
        (recipe(parts={"advantage": "grpo", "loss": "dpo"}), "its parts train on what it trains on"),
        (recipe(settings={"group_size": 1}), "its groups are large enough"),
    ],
)
def test_a_recipe_that_lacks_a_property(algorithm: Algorithm, missing: str) -> None:
    from rlcore.api.records import Kind
    from rlcore.plugins.loader import Switches, load
    from rlcore.plugins.registry import Entry, PluginInfo, Registry

    mine = PluginInfo(name="mine", dist="mine", version="1", origin="mine")
    entries = [
        *load(Switches()).registry.entries(),
        Entry(kind=Kind.ALGORITHM, record=algorithm, provider=mine),
    ]
    lacks(AlgorithmConformance.of(Subject(record=algorithm, registry=Registry(entries))), missing)


# --- commands ------------------------------------------------------------------------------------------


def command(name: str = "hello", help: str = "Say hello.", **changes: Any) -> click.Command:
    params = [click.Option(["--loud"], is_flag=True, help="Loudly.")]
    return click.Command(name, **{"help": help, "params": params, **changes})


LOOSE = click.Command(
    "loose",
    help="Take anything.",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)


class Crashing(click.Command):
    __module__ = "click"  # this module imports torch, which is another fault

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        raise ValueError(f"what is {args}?")


@pytest.mark.parametrize(
    ("one", "missing"),
    [
        (command(), ""),
        (click.Group("tools", help="Two tools.", commands={"hello": command()}), ""),
        (command("Hello_You"), "its name is easy to type"),
        (command(help=""), "it says what it does"),
        (command(params=[click.Option(["--loud"])]), "each option has help"),
        (click.Group("tools", help="Tools.", commands={"hello": command(help="")}), "it says what it does"),
        (LOOSE, "an unknown option is refused"),
        (Crashing("crash", help="Crash."), "an unknown option is refused"),
    ],
)
def test_a_command_that_lacks_a_property(one: click.Command, missing: str) -> None:
    lacks(CommandConformance.of(Subject(record=one)), missing)


def test_a_command_whose_module_imports_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "heavy_command.py").write_text("import json, click, numpy\ndef run(): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("rlcore_testing.commands.HEAVY", ("torch", "numpy"))
    import heavy_command  # type: ignore[import-not-found] # made above

    found = all_fails(CommandConformance.of(Subject(record=command(callback=heavy_command.run, params=[]))))
    assert found == {"its module imports little": "heavy_command imports numpy; import it where it is used"}


# --- any part ------------------------------------------------------------------------------------------


class SoundConfig(PartConfig):
    size: int = Field(3, description="how much")


class Helpless(PartConfig):
    size: int = 3


class Loose(PartConfig):
    model_config: ClassVar[Any] = {"extra": "allow", "frozen": False}


class Lossy(PartConfig):
    names: tuple[Any, ...] = Field((1, (2,)), description="names")


class Grumpy(PartConfig):
    def complaints(self, name: str, run: Any, neighbors: Any) -> Iterable[str]:
        yield "no"


class Rude(PartConfig):
    def complaints(self, name: str, run: Any, neighbors: Any) -> Iterable[str]:
        return ["--max-staleness: no."] if neighbors[0] else []


def make(config: Config) -> object:
    return config


@pytest.mark.parametrize(
    ("config", "missing"),
    [
        (SoundConfig(), ""),
        (Helpless(), "each setting has help"),
        (Loose(), "its config does not change"),
        (Lossy(), "its config can be sent to a worker"),
        (Grumpy(), "its complaints are sentences"),
        (Rude(), "its complaints are sentences"),
    ],
)
def test_a_config_that_lacks_a_property(config: PartConfig, missing: str) -> None:
    part = Part(name="mine", factory=f"{__name__}:make", config=config)
    record = Component(name="mine", factory=part.factory, summary="mine")
    lacks(PartConformance.of(Subject(record=record, part=part)), missing)


def test_of_a_part_that_cannot_be_made_nothing_else_is_asked() -> None:
    part = Part(name="mine", factory=f"{__name__}:nothing", config=SoundConfig())
    record = Component(name="mine", factory=part.factory, summary="mine")
    found = list(check("callback", Subject(record=record, part=part)))
    assert [one.name for one in found if one.outcome is Outcome.FAILS] == [
        "its factory is where its record says"
    ]
    assert "has no 'nothing'" in found[0].reason
    assert not [one for one in found if "steered" in one.name]
