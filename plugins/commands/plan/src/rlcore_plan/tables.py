"""What `rlcore plan` prints for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rlcore_toolkit import GB, MB, count_text, counted, size_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from rlcore_toolkit import Bounds, Machines, Phase, Plan, PlannedLayout

CACHE_TOKENS = 1000


def show_layouts(
    model: str, machines: Machines, plan: Plan, count: int, *, explain: bool, command: str, less: str
) -> None:
    """The layouts of a search, `count` of each kind.

    `command`: starts the run, without a layout. `less`: what needs less memory.
    """
    console = _console()
    _summary(console, model, plan)
    fitting = [layout for layout in plan.layouts if not layout.reason]
    others = [layout for layout in plan.layouts if layout.reason]
    shown = fitting[:count]
    if fitting:
        best = fitting[0]
        fit = "1 layout fits" if len(fitting) == 1 else f"{len(fitting)} layouts fit"
        cut = f", the best {len(shown)} of them" if len(shown) < len(fitting) else ""
        console.print(f"[bold]{fit}[/] into {_usable(machines)}{cut}:")
        console.print(_bytes("layout", {_name(layout): layout.parts for layout in shown}, digits=1))
        _footnotes(console, shown)
        console.print("The best, stage by stage:")
        console.print(_bytes("stage", best.stages(), digits=2))
        console.print(f"Its phases{best.engines.replace(', ', ', with ', 1)}:", highlight=False)
        console.print(_phases(best.phases))
        console.print(f"{command} {best.flags()}", highlight=False, soft_wrap=True)
        if explain:
            _explain(console, best)
    else:
        console.print(f"[bold]No layout fits[/] into {_usable(machines)}.")
        more = plan.nearest
        found = (
            f"Nearest that fits: {_name(more)} on {more.ranks} GPUs{more.engines}."
            if more
            else f"Nor does one on up to {plan.most_gpus} GPUs."
        )
        console.print(found, highlight=False)
        if plan.smaller:
            console.print(f"A smaller model that fits: {plan.smaller}.", highlight=False)
        if less:
            console.print(f"Less memory is needed with {less}.", highlight=False, soft_wrap=True)
    if others:
        cut = f"; {count} of them" if count < len(others) else ""
        console.print(f"\n{counted(len(others), 'layout')} ruled out{cut}:", highlight=False)
        console.print(_refused(others[:count]))
    _footnotes(console, [*others[:count], *([plan.nearest] if plan.nearest else ())], told=shown)


def _footnotes(
    console: Console, layouts: Iterable[PlannedLayout], told: Iterable[PlannedLayout] = ()
) -> None:
    """Say what the marks of these layouts mean, but for those that layouts have which were `told` before."""
    known = {mark for layout in told for mark in layout.marks}
    marks = {mark: text for layout in layouts for mark, text in layout.marks.items() if mark not in known}
    for mark, text in marks.items():
        console.print(f"{mark} {text}")


def _usable(machines: Machines) -> str:
    """What a layout may take of a GPU; CUDA, NCCL and gaps between tensors take the rest."""
    return f"the usable {machines.usable / GB:.1f} of {machines.memory / GB:g} GB of each GPU"


def show_judged(model: str, plan: Plan, *, explain: bool) -> None:
    """The layout of a file."""
    console, layout, near = _console(), plan.layouts[0], plan.nearest
    _summary(console, model, plan)
    verdict = f"[bold red]it does not fit[/]: {layout.reason}" if layout.reason else "[bold green]it fits[/]"
    console.print(
        f"{layout.name} on {counted(layout.ranks, 'GPU')}{layout.engines}: {verdict}.", highlight=False
    )
    if layout.phases:
        console.print(_phases(layout.phases))
    if layout.host:
        console.print(f"Host memory of a node: {size_text(layout.host)}.", highlight=False)
    for line in _bounds(plan.bounds):
        console.print(line, highlight=False)
    if explain and layout.parts:
        _explain(console, layout)
    if near is not None:
        engines = "" if near.engines == layout.engines else near.engines
        console.print(f"Nearest that fits: {_name(near)}{engines}", highlight=False)
        console.print(f"rlcore train … {near.flags(layout)}", highlight=False, soft_wrap=True)
    elif plan.apart:
        for reason in plan.apart:
            console.print(f"No layout of the policy changes this: {reason}.", highlight=False)
    elif layout.reason:
        console.print(f"No layout of {layout.ranks} GPUs fits.")


def _console() -> Console:
    from rich.console import Console

    return Console()


def _summary(console: Console, model: str, plan: Plan) -> None:
    counted = f", {count_text(plan.active)} of them active (embeddings counted)"
    active = counted if plan.active < plan.parameters else ""
    console.print(f"[bold]{model}[/]: {count_text(plan.parameters)} parameters{active}, {plan.dtype}.")
    console.print(
        f"A publication carries {size_text(plan.publication)}; an engine's KV cache takes "
        f"{size_text(plan.cache * CACHE_TOKENS)} for {CACHE_TOKENS} tokens.",
        highlight=False,
        soft_wrap=True,
    )


def _explain(console: Console, layout: PlannedLayout) -> None:
    for line in layout.explanation():
        console.print(line, highlight=False, soft_wrap=True)


def _name(layout: PlannedLayout) -> str:
    return " ".join((layout.name, *layout.marks))


def _bytes(first: str, rows: Mapping[str, Mapping[str, int]], digits: int) -> Table:
    """A row for each name, a column for each part; the last one names the unit of all."""
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(box=SIMPLE, collapse_padding=True, pad_edge=False)
    table.add_column(first, no_wrap=True)
    unit, unit_name = _unit(parts["total"] for parts in rows.values())
    for title in next(iter(rows.values())):
        shown = f"{title} {unit_name}" if title == "total" else title
        table.add_column(shown, justify="right", no_wrap=True)
    for name, parts in rows.items():
        table.add_row(name, *(f"{size / unit:.{digits}f}" for size in parts.values()))
    return table


def _unit(sizes: Iterable[float]) -> tuple[int, str]:
    """The bytes and the name of the one unit for all numbers of a table."""
    return (GB, "GB") if max(sizes, default=0) >= GB else (MB, "MB")


def _refused(layouts: Sequence[PlannedLayout]) -> Table:
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(box=SIMPLE)
    table.add_column("layout", no_wrap=True)
    table.add_column("why not")
    for layout in layouts:
        table.add_row(_name(layout), layout.reason)
    return table


def _bounds(best: Bounds) -> Iterator[str]:
    if best.rollout is not None:
        yield (
            f"Memory bandwidth: at most {best.tokens:.0f} tokens/s of an engine, so a rollout of the longest "
            f"responses takes {best.rollout:.0f} s or more."
        )
    if best.publication is not None:
        yield f"Network: a publication takes {best.publication:.1f} s or more."


def _phases(phases: Sequence[Phase]) -> Table:
    """What is on the fullest GPU in each phase."""
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(box=SIMPLE)
    table.add_column("phase", no_wrap=True)
    unit, name = _unit(phase.total for phase in phases)
    for title in (name, "of"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("what is on the fullest GPU")
    for phase in phases:
        items = ", ".join(f"{what} {size / unit:.1f}" for what, size in phase.items.items() if size)
        note = f"; {phase.note}" if phase.note else ""
        table.add_row(phase.name, f"{phase.total / unit:.1f}", f"{phase.limit / unit:.1f}", f"{items}{note}")
    return table
