"""The documentation names everything that there is."""

import re
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import site_pages

from rlcore import Callback, Kind, Part, Prompt, RewardConfig, RewardPart, RunControl, Sample, Score, Tracker
from rlcore.api import hookspecs
from rlcore.learning.metrics import METRICS, ROLE_METRICS
from rlcore.plugins.loader import Switches, load
from rlcore.rollout.reward_mix import RewardMix
from rlcore_cli.columns import COLUMNS, REFERENCE_KL, RESPONSE_COLUMNS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EVERYTHING = "\n".join(path.read_text() for path in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))])


def test_the_page_of_metrics_has_each_column_of_the_live_table() -> None:
    page = (DOCS / "metrics.md").read_text()
    table = page.partition("## The live table")[2].partition("##")[0]
    found = dict(re.findall(r"^\| \*\*(.+)\*\* \| `(.+?)`", table, re.MULTILINE))
    columns = {column.title: column.key for column in (*COLUMNS, *RESPONSE_COLUMNS)}
    assert found == columns | {"eval": "eval/<set>/score"}
    assert f"`{REFERENCE_KL.key}`" in table


@pytest.mark.parametrize("kind", list(Kind))
def test_every_bundled_name_is_documented(kind: Kind) -> None:
    names = load().registry.names(kind)
    assert names
    missing = [name for name in names if not re.search(rf"[`\s/|]{re.escape(name)}[`\s.,;:|)]", EVERYTHING)]
    assert not missing


def test_each_made_page_and_table_has_its_place() -> None:
    """Every link to a made page leads to one, and so does the menu to each; every table stands once."""
    links = set(re.findall(r"<!-- ([\w/.-]+\.md)(?:#[\w-]+)? -->", EVERYTHING))
    assert links == set(site_pages.PAGES)
    assert sorted(re.findall(r"<!-- table: (\w+) -->", EVERYTHING)) == sorted(site_pages.TABLES)


def test_every_hook_has_its_row() -> None:
    rows = re.findall(
        r"^\| `(rlcore_\w+)` \| `\(\) -> Iterable\[\w.*\]` \| \w", site_pages.TABLES["hooks"](), re.MULTILINE
    )
    assert rows == [name for name in vars(hookspecs) if name.startswith("rlcore_")]


def test_the_texts_of_the_metrics_are_those_of_the_pages() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "metric_texts.py"))
    assert script["FILE"].read_text() == script["written"](), "run scripts/metric_texts.py"


def test_every_metric_of_the_learner_is_documented() -> None:
    text = (DOCS / "metrics.md").read_text()
    assert not [name for name in {**METRICS, **ROLE_METRICS} if f"`{name}`" not in text]


def example(page: str, name: str, folder: Path) -> Path:
    """The program `name`, written to `folder` as the page has it."""
    (text,) = re.findall(rf"```python\n(# {name}\.py:.*?)```", (DOCS / page).read_text(), re.DOTALL)
    file = folder / f"{name}.py"
    file.write_text(text)
    return file


def test_the_plugin_of_one_file_works(tmp_path: Path) -> None:
    """It is loaded as a file, and judges."""
    file = example("plugins.md", "last_word", tmp_path)
    plugins = load(Switches(only=(), files=(file,), strict=True))
    entry = plugins.registry.find(Kind.REWARD, "last_word", "--reward")
    config = entry.config()
    assert isinstance(config, RewardConfig)
    part = RewardPart(name="last_word", factory=entry.component.factory, config=config)
    prompt = Prompt(prompt_id="p", text="say seven", label="seven")
    fresh = Sample(prompt=prompt, prompt_ids=(1,), group_id=0, index=0, rollout_id="r")
    found = RewardMix([part]).score(
        [replace(fresh, text=text) for text in ("it is seven", "seven it is", "")]
    )
    assert [one.value for one in found if isinstance(one, Score)] == [1.0, 0.0, 0.0]


EXAMPLES = {
    ("trackers.md", "post"): Kind.TRACKER,
    ("callbacks.md", "warm_restart"): Kind.CALLBACK,
    ("producers.md", "half"): Kind.PRODUCER,
    ("corrections.md", "low_probability"): Kind.CORRECTION,
}


@pytest.mark.parametrize(("page", "name"), EXAMPLES)
def test_the_file_of_a_page_is_a_plugin(page: str, name: str, tmp_path: Path) -> None:
    plugins = load(Switches(only=(), files=(example(page, name, tmp_path),), strict=True))
    entry = plugins.registry.find(EXAMPLES[page, name], name, "--plugin")
    found = Part(name=name, factory=entry.component.factory).load()
    events = {Kind.TRACKER: Tracker, Kind.CALLBACK: Callback}.get(entry.kind)
    assert events is None or issubclass(found, events)


def test_the_reward_of_steps_gives_credit_to_tokens(tmp_path: Path) -> None:
    program = runpy.run_path(str(example("rewards.md", "steps", tmp_path)))
    score = program["each_step"]("so a = 1 ok", [(0, 2), (2, 5), (5, 8), (8, 11)])
    assert score.per_token == (0.0, 0.0, 0.1, 0.0)
    assert score.value == pytest.approx(0.1)


def test_the_callback_of_its_page_steers(tmp_path: Path) -> None:
    file = example("callbacks.md", "warm_restart", tmp_path)
    entry = load(Switches(only=(), files=(file,), strict=True)).registry.find(
        Kind.CALLBACK, "warm_restart", "x"
    )
    made = Part(name="warm_restart", factory=entry.component.factory).build()
    assert made.after_step(1, {"train/entropy": 0.05}) == RunControl(lr_scale=0.1, evaluate=True)
    assert made.after_step(2, {"train/entropy": 0.5}) == RunControl(lr_scale=0.2)
    again = Part(name="warm_restart", factory=entry.component.factory).build()
    again.load(made.state())
    assert again.after_step(3, {}) == made.after_step(3, {}) == RunControl(lr_scale=0.3)


@pytest.mark.parametrize("page", sorted(path.relative_to(ROOT).as_posix() for path in DOCS.rglob("*.md")))
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert not [link for link in links if not (ROOT / page).parent.joinpath(link).exists()]


def test_links_of_the_readme_lead_somewhere() -> None:
    links = [
        link for link in re.findall(r"\]\(([^)#]+)", (ROOT / "README.md").read_text()) if "://" not in link
    ]
    assert not [link for link in links if not (ROOT / link).exists()]


PAGES = {path.name: path.read_text() for path in (DOCS / "algorithms").glob("*.md")}


PAGE_OF = {
    **dict.fromkeys(("dr_grpo", "dapo", "dppo", "kl_cov", "pass_at_k"), "grpo.md"),
    **dict.fromkeys(("luspo", "gmpo", "vespo"), "gspo.md"),
    **dict.fromkeys(("rloo", "opo", "gpg", "remax", "reinforce++", "reinforce++-baseline"), "reinforce.md"),
}
"""Recipes that share a page."""


@pytest.mark.parametrize("recipe", load().registry.names(Kind.ALGORITHM))
def test_each_recipe_has_a_page(recipe: str) -> None:
    """Its command, the formula, numbered details, what it logs, its settings, and its measured curve."""
    command = re.compile(rf"--algo {re.escape(recipe)}(?![\w+-])")
    page = PAGES[PAGE_OF.get(recipe, f"{recipe}.md")]
    assert command.search(page)
    assert f"learning-{recipe.replace('+', '_plus')}.svg" in page
    heads = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert [head for head in heads if re.fullmatch(r"(The )?[Ff]ormulas?", head)]
    assert {"Details", "Metrics", "Settings", "Measured"} <= set(heads)
    assert len(heads) == len(set(heads))
    assert re.search(r"^## Details\n\n1\. ", page, re.MULTILINE)


CONFORMANCE = (DOCS / "conformance.md").read_text()


RELIABILITY = (DOCS / "reliability.md").read_text()


@pytest.mark.parametrize("test", sorted(set(re.findall(r"`(\S+\.py::\w+)`", CONFORMANCE + RELIABILITY))))
def test_what_a_page_names_is_a_test(test: str) -> None:
    path, _, name = test.partition("::")
    assert re.search(rf"^ *(?:async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE)


def test_each_convention_of_the_conformance_page_is_a_setting() -> None:
    table = CONFORMANCE.partition("## Conventions")[2].partition("No setting")[0]
    flags = re.findall(r"`(--[\w.-]+)`", table)
    settings = site_pages.settings()
    assert len(flags) > 10
    assert not [flag for flag in flags if f"`{flag}`" not in settings]
