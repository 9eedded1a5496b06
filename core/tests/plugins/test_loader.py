"""Discovery, switches, and plugins that are broken."""

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
from refusals import Case, cases

from rlcore import EngineConfig, Kind, PluginError, RunConfig, __version__
from rlcore.api.config import fields_of
from rlcore.config.layers import Layer
from rlcore.plugins.installed import UNKNOWN
from rlcore.plugins.loader import Plugins, Switches, load
from rlcore.plugins.setting_names import NUMBERS, SETTINGS
from rlcore_cli.select import select
from rlcore_local.config import LocalConfig
from rlcore_wandb import plugin as wandb

Install = Callable[..., str]

REWARD = """
@hookimpl
def rlcore_rewards():
    yield Component(name="{name}", factory=f"{{__name__}}:Score", summary="a reward")
class Score:
    def __init__(self, config):
        self.config = config
"""


def loaded(*names: str, strict: bool = False) -> Plugins:
    return load(Switches(only=names, strict=strict))


def versions(plugins: Plugins) -> dict[str, str]:
    return {info.name: info.version for info in plugins.infos}


def test_no_switch_leaves_out_what_is_kept() -> None:
    plugins = load(Switches(only=()), keep={"wandb": wandb})
    assert plugins.registry.names(Kind.TRACKER) == ["wandb"]
    assert [(info.name, info.dist, info.version) for info in plugins.infos] == [
        ("wandb", "rlcore-wandb", __version__)
    ]
    with pytest.raises(PluginError, match=r"^-p no:wandb: it cannot be switched off\.$"):
        load(Switches(off=("wandb",)), keep={"wandb": wandb})


def test_what_is_kept_has_the_version_of_its_own_distribution(install: Install) -> None:
    module = import_module(install("mine", "", dist="acme-mine"))
    [info] = load(Switches(only=()), keep={"mine": module}).infos
    assert (info.dist, info.version) == ("acme-mine", "1.2.3")


def test_a_plugin_is_found_through_its_entry_point(install: Install) -> None:
    module = install("mine", REWARD.format(name="kind_words"))
    plugins = loaded("mine")
    entry = plugins.registry.find(Kind.REWARD, "kind_words", "--reward")
    assert entry.component.factory == f"{module}:Score"
    assert (entry.provider.dist, entry.provider.version, entry.provider.origin) == (
        "rlcore-mine",
        "1.2.3",
        module,
    )
    assert versions(plugins)["mine"] == "1.2.3"


@pytest.mark.parametrize("name", ["mine", "rlcore-mine"])
def test_off_leaves_a_plugin_out(install: Install, name: str) -> None:
    install("mine", REWARD.format(name="kind_words"))
    assert "mine" not in versions(load(Switches(off=(name,))))


def test_the_environment_holds_the_switches(install: Install) -> None:
    assert Switches.from_environment({}) == Switches()
    assert Switches.from_environment({"RLCORE_PLUGINS": ""}).only == ()
    assert Switches.from_environment({"RLCORE_PLUGINS": "a, b"}).only == ("a", "b")
    assert Switches.from_environment({"RLCORE_STRICT_PLUGINS": "1"}).strict
    assert not Switches.from_environment({"RLCORE_STRICT_PLUGINS": "0"}).strict


def test_a_switch_that_names_no_plugin_is_refused(install: Install) -> None:
    install("mine", REWARD.format(name="kind_words"))
    with pytest.raises(PluginError, match=r"^-p no:mien: no such plugin\. Did you mean 'mine'\?$"):
        load(Switches(off=("mien",)))
    with pytest.raises(PluginError, match=r"^RLCORE_PLUGINS=mien: no such plugin"):
        loaded("mien")


SUGGESTS = """@hookimpl
def rlcore_rewards():
    yield Component(name='x', factory='x:y', summary='x', suggests={'stepz': 1})"""


@cases("broken plugins")
def test_a_broken_plugin_is_kept_aside_and_the_others_load(install: Install, case: Case) -> None:
    name, body = case.given
    install(f"bad_{name}", body, dist="bad-plugin")
    install("mine", REWARD.format(name="kind_words"))
    plugins = loaded(f"bad_{name}", "mine")
    assert set(versions(plugins)) == {"mine"}
    (broken,) = plugins.broken
    assert (broken.name, broken.dist, broken.version) == (f"bad_{name}", "bad-plugin", "1.2.3")
    case.check(broken.error)
    assert not plugins.manager.has_plugin(f"bad_{name}")
    with pytest.raises(PluginError, match=r"failed to load: bad-plugin 1\.2\.3"):
        plugins.registry.find(Kind.REWARD, "kinder_words", "--reward")


@pytest.mark.parametrize(
    ("requires", "range_"),
    [
        ("rlcore<0.3,>=0.2", "<0.3,>=0.2"),
        ("rlcore (<0.1)", "<0.1"),
        ("rlcore>=99.1.dev3", ">=99.1.dev3"),
        ("rlcore~~1", "~~1"),
    ],
)
def test_a_plugin_for_another_rlcore_is_told_and_not_imported(
    install: Install, requires: str, range_: str
) -> None:
    install("mine", "raise OSError('imported')", requires=["numpy>=1", requires])
    [broken] = loaded("mine").broken
    assert broken.error == (
        f"it asks for rlcore{range_}, and rlcore {__version__} is installed; "
        "install a release of rlcore-mine for this one"
    )
    with pytest.raises(PluginError, match=r"failed to load: rlcore-mine 1\.2\.3 \(it asks for rlcore"):
        loaded("mine").registry.find(Kind.REWARD, "kind_words", "--reward")


@pytest.mark.parametrize(
    "requires",
    ["rlcore", "rlcore<0.2,>=0.1", 'rlcore>=9; extra == "next"', "rlcore-cli>=9", "rlcore[models]"],
)
def test_a_plugin_for_this_rlcore_is_loaded(install: Install, requires: str) -> None:
    install("mine", REWARD.format(name="kind_words"), requires=[requires])
    assert not loaded("mine").broken


def test_a_plugin_whose_metadata_are_gone_is_of_no_known_distribution(
    install: Install, tmp_path: Path
) -> None:
    """Where the removal of a package was broken off. Every command would end with it."""
    install("mine", REWARD.format(name="kind_words"))
    [metadata] = tmp_path.rglob("METADATA")
    metadata.unlink()
    [info] = loaded("mine").infos
    assert (info.name, info.dist, info.version) == ("mine", UNKNOWN, "0")


def test_a_slow_plugin_is_named_while_it_is_imported(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not afterwards: its import may never end. This one ends once it was named."""
    monkeypatch.setattr("rlcore.plugins.loader.SLOW_S", 0.05)
    named = tmp_path / "named"
    install(
        "mine",
        "import time\nfrom pathlib import Path\nfor _ in range(2000):\n"
        f"    if Path({str(named)!r}).exists():\n        break\n    time.sleep(0.01)\n"
        "else:\n    raise TimeoutError\n",
    )
    plugins = load(Switches(only=("mine",)), warn=named.write_text)
    assert not plugins.broken
    assert named.read_text() == (
        "plugin 'mine' of rlcore-mine 1.2.3 takes more than 0.05 s to import; every command waits for it, "
        "and -p no:mine leaves it out."
    )


def test_a_plugin_that_is_fast_is_not_named(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlcore.plugins.loader.SLOW_S", 600)
    install("mine", REWARD.format(name="kind_words"))
    warned: list[str] = []
    load(Switches(only=("mine",)), warn=warned.append)
    assert warned == []


def test_a_hint_that_fails_names_the_plugin(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    install("mine", "@hookimpl\ndef rlcore_foreign_settings():\n    yield 1 / 0", dist="my-plugin")
    assert list(loaded("mine").registry.foreign()) == []
    assert (
        "plugin 'mine' of my-plugin 1.2.3 cannot give its foreign settings: ZeroDivisionError" in caplog.text
    )


def test_strict_makes_a_broken_plugin_fatal(install: Install) -> None:
    install("bad", "raise OSError('gone')", dist="bad-plugin")
    with pytest.raises(PluginError, match=r"^plugin 'bad' of bad-plugin 1\.2\.3 is broken: OSError: gone\.$"):
        loaded("bad", strict=True)
    install("worse", SUGGESTS, dist="worse-plugin")
    with pytest.raises(PluginError, match=r"Did you mean 'steps'\?$"):
        loaded("worse", strict=True)


def test_two_distributions_of_one_plugin_name_are_both_broken(install: Install) -> None:
    install("mine", REWARD.format(name="kind_words"), dist="first-plugin")
    install("mine", REWARD.format(name="harsh_words"), dist="second-plugin", version="4.5")
    broken = loaded("mine").broken
    assert {plugin.dist for plugin in broken} == {"first-plugin", "second-plugin"}
    assert all("first-plugin 1.2.3 and second-plugin 4.5" in plugin.error for plugin in broken)


def test_nobody_takes_the_name_of_a_plugin_that_is_kept(install: Install) -> None:
    install("wandb", REWARD.format(name="kind_words"), dist="other-wandb")
    (broken,) = load(Switches(), keep={"wandb": wandb}).broken
    assert (broken.dist, broken.error) == ("other-wandb", "the name 'wandb' is rlcore's own; choose another")


def test_a_clash_names_both_providers(install: Install) -> None:
    install("mine", REWARD.format(name="kind_words"))
    install("yours", REWARD.format(name="kind_words"), version="4.5")
    registry = loaded("mine", "yours").registry
    with pytest.raises(PluginError) as caught:
        registry.find(Kind.REWARD, "kind_words", "--reward")
    said = (
        "reward 'kind_words' is offered by two plugins, mine (rlcore-mine 1.2.3) and yours "
        "(rlcore-yours 4.5); switch one off with -p no:mine or -p no:yours."
    )
    assert str(caught.value) == f"--reward: {said}"
    assert registry.clashes == (said,)
    with pytest.raises(PluginError) as caught:
        load(Switches(only=("mine", "yours"), strict=True))
    assert str(caught.value) == said


def test_a_clash_with_a_file_is_mended_by_another_name(install: Install, tmp_path: Path) -> None:
    install("mine", REWARD.format(name="kind_words"))
    file = tmp_path / "words.py"
    imports = "from rlcore import Component, hookimpl\n"
    file.write_text(imports + REWARD.format(name="kind_words"))
    with pytest.raises(PluginError, match=r"; rename that of the file, or switch one off with -p no:mine\.$"):
        _ = load(Switches(only=("mine",), files=(file,))).registry


def test_a_clash_leaves_all_other_names_alone(install: Install) -> None:
    """Neither of the two is used, whichever was installed first."""
    install("mine", REWARD.format(name="kind_words"))
    install(
        "yours", REWARD.format(name="kind_words") + REWARD.format(name="own").replace("rewards", "filters")
    )
    registry = loaded("mine", "yours").registry
    assert registry.find(Kind.FILTER, "own", "--filter").provider.name == "yours"
    assert registry.names(Kind.REWARD) == []
    with pytest.raises(PluginError, match="The reward 'kind_words' is offered by two plugins, mine"):
        registry.find(Kind.REWARD, "kind_word", "--reward")


CLUSTER = """
from rlcore import ClusterConfig
@hookimpl
def rlcore_clusters():
    yield Component(name="{name}", factory="x:y", summary="a cluster", config=ClusterConfig, default=True)
"""


def test_a_default_that_clashes_is_refused(install: Install) -> None:
    """Otherwise a run would ask for a part that is installed twice."""
    install("mine", CLUSTER.format(name="local"))
    install("yours", CLUSTER.format(name="local"))
    assert loaded("mine").registry.default(Kind.CLUSTER)
    clash = r"^The cluster 'local' is offered by two plugins, mine \(.*\) and yours \(.*\); switch one off "
    with pytest.raises(PluginError, match=clash):
        loaded("mine", "yours").registry.default(Kind.CLUSTER)
    assert loaded("mine", "yours").registry.default(Kind.ENGINE) is None


DATA = """
from rlcore import DataConfig
@hookimpl
def rlcore_sources():
    yield Source(name="{name}", factory="x:y", summary="rows", config=DataConfig, task=False)
"""


def test_the_source_behind_data_is_found_by_what_it_is(install: Install) -> None:
    install("mine", DATA.format(name="rows"))
    assert loaded("mine").registry.data_source("--data").record.name == "rows"
    with pytest.raises(PluginError, match=r"^--data: no plugin offers a source that reads data\.$"):
        loaded().registry.data_source("--data")
    install("yours", DATA.format(name="table"))
    with pytest.raises(PluginError) as caught:
        loaded("mine", "yours").registry.data_source("--data")
    assert str(caught.value) == (
        "--data: a source that reads data is offered by two plugins, mine (rlcore-mine 1.2.3) and yours "
        "(rlcore-yours 1.2.3); switch one off with -p no:mine or -p no:yours."
    )


def test_a_miss_says_what_exists(install: Install) -> None:
    with pytest.raises(PluginError) as caught:
        loaded("wandb").registry.find(Kind.TRACKER, "wanbd", "--tracker")
    assert str(caught.value) == "--tracker: found 'wanbd', expected one of wandb. Did you mean 'wandb'?"
    with pytest.raises(PluginError, match="no plugin offers any loss"):
        loaded().registry.find(Kind.LOSS, "ppo", "--loss")


def test_a_file_is_a_plugin(tmp_path: Path) -> None:
    file = tmp_path / "my plugin.py"
    file.write_text(
        "from rlcore.api.hookspecs import hookimpl\nfrom rlcore.api.records import Component\n"
        + REWARD.format(name="kind_words")
    )
    plugins = load(Switches(only=(), files=(file,)))
    assert plugins.registry.names(Kind.REWARD) == ["kind_words"]
    (kept,) = plugins.files
    assert versions(plugins)["my plugin.py"] == f"sha256:{kept.sha256}"
    assert load(Switches(only=(), files=(file,))).registry.names(Kind.REWARD) == ["kind_words"]


FUNCTIONS = """
from json import loads

def short(response):
    \"""Shorter is better.

    Much shorter is much better.\"""

def helper(text): ...
def Capital(response): ...
async def own(ctx, sample): ...
async def asks(sample, label): ...
"""


def test_the_functions_of_a_file_without_hooks_are_parts(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FUNCTIONS)
    plugins = load(Switches(only=("functions",), files=(file,)))
    assert plugins.registry.names(Kind.REWARD) == ["asks", "short"]
    assert plugins.registry.names(Kind.GENERATOR) == ["own"]
    assert plugins.registry.find(Kind.REWARD, "short", "--reward").record.summary == "Shorter is better."
    hooked = tmp_path / "hooked.py"
    hooked.write_text(
        f"from rlcore import hookimpl\n{FUNCTIONS}\n@hookimpl\ndef rlcore_losses(): return ()\n"
    )
    assert not load(Switches(only=("functions",), files=(hooked,))).registry.names(Kind.REWARD)


ADAPTER = """
@hookimpl
def rlcore_reward_adapters():
    from rlcore import RewardAdapter
    yield RewardAdapter(parameters=(frozenset({names}),), factory_of=f"{{__name__}}:adapt")

def adapt(function, name): return lambda config: (function, name)
"""


def test_the_adapter_that_knows_most_of_a_function_makes_the_reward(install: Install, tmp_path: Path) -> None:
    module = install("mine", ADAPTER.format(names={"queries", "prompts"}))
    file = tmp_path / "functions.py"
    file.write_text("def theirs(queries, prompts, labels=0): ...\ndef ours(prompts): ...\n")
    plugins = load(Switches(only=("functions", "mine"), files=(file,), strict=True))
    entry = plugins.registry.find(Kind.REWARD, "theirs", "--reward")
    assert entry.component.adapter == f"{module}:adapt"
    assert [info.name for info in entry.adapted_by] == ["mine"]
    install("yours", ADAPTER.format(names={"prompts"}))
    registry = load(Switches(only=("functions", "yours"), files=(file,))).registry
    both = (
        r"^--reward: what makes a reward of the function 'ours' is offered by two plugins, functions \(.*\) "
        r"and yours \(rlcore-yours 1\.2\.3\); switch one off with -p no:functions or -p no:yours\.$"
    )
    with pytest.raises(PluginError, match=both):
        registry.find(Kind.REWARD, "ours", "--reward")
    assert load(Switches(only=(), files=(file,))).registry.names(Kind.REWARD) == []


def test_an_adapter_of_a_file_is_for_the_functions_of_every_file(tmp_path: Path) -> None:
    functions, adapter = tmp_path / "functions.py", tmp_path / "the_adapter.py"
    functions.write_text("def theirs(queries): ...\n")
    adapter.write_text("from rlcore import hookimpl\n" + ADAPTER.format(names={"queries"}))
    registry = load(Switches(only=(), files=(functions, adapter))).registry
    selection = select(registry, None, Layer(label="", values={"reward": "theirs"}))
    assert [info.name for info in selection.providers()] == ["functions.py", "the_adapter.py"]


def test_an_adapter_without_settings_is_told_when_strict(tmp_path: Path) -> None:
    file = tmp_path / "the_adapter.py"
    adapter = "RewardAdapter(parameters=(frozenset('a'),), factory_of='x:y', config='nowhere:C')"
    head = "from rlcore import RewardAdapter, hookimpl\n@hookimpl\ndef rlcore_reward_adapters():"
    file.write_text(f"{head} yield {adapter}\n")
    assert not load(Switches(only=(), files=(file,))).broken
    with pytest.raises(PluginError, match=r"reward 'x:y' of .*: 'x:y' cannot be loaded from 'nowhere:C'"):
        load(Switches(only=(), files=(file,), strict=True))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r".*gone\.py: No such file or directory"):
        load(Switches(only=(), files=(tmp_path / "gone.py",)))


@pytest.mark.filterwarnings("ignore:can't resolve package:ImportWarning")
def test_a_file_whose_imports_need_its_folder_says_how_to_use_it(tmp_path: Path) -> None:
    (tmp_path / "lying_beside.py").touch()
    file = tmp_path / "mine.py"
    for line, said in (
        ("import lying_beside.more", f"; that lies beside the file: set PYTHONPATH={tmp_path}"),
        ("from .sibling import f", "; it is part of a package: import its function in a file of your own"),
    ):
        file.write_text(line)
        (broken,) = load(Switches(only=(), files=(file,))).broken
        assert said in broken.error


LAZY = """
@hookimpl
def rlcore_engines():
    yield Component(name="lazy", factory=f"{{__name__}}:Lazy", config="{config}", summary="an engine")
"""


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("nowhere:Settings", "'lazy' cannot be loaded from 'nowhere:Settings': No module named 'nowhere'."),
        ("json:JSONDecoder", "config <class 'json.decoder.JSONDecoder'>"),
        ("ends_itself:Settings", "'lazy' cannot be loaded from 'ends_itself:Settings': SystemExit: 0."),
        ("lacks_a_package:Settings", "MissingPackageError: pip install it."),
    ],
)
def test_a_config_that_is_named_is_imported_when_its_part_is_chosen(
    install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str], config: str, said: str
) -> None:
    install("mine", LAZY.format(config=config))
    said = f"engine 'lazy' of rlcore-mine 1.2.3: {said}"
    (tmp_path / "site0/ends_itself.py").write_text("print('bye')\nraise SystemExit(0)")
    (tmp_path / "site0/lacks_a_package.py").write_text(
        "from rlcore import MissingPackageError\nraise MissingPackageError('pip install it.')"
    )
    registry = loaded("mine", "local").registry
    assert not registry.broken
    assert [entry.record.name for entry, _ in registry.configs(Kind.ENGINE)] == ["local"]
    assert registry.find(Kind.ENGINE, "local", "--engine").config is LocalConfig
    with pytest.raises(PluginError, match=re.escape(said)):
        registry.find(Kind.ENGINE, "lazy", "--engine")
    with pytest.raises(PluginError, match=re.escape(said)):
        loaded("mine", strict=True)
    assert not capsys.readouterr().out


@pytest.mark.parametrize("config", ["Config", "'rlcore:Config'"])
def test_a_part_with_the_root_of_all_configs_has_that_of_its_kind(install: Install, config: str) -> None:
    body = LAZY.replace('"{config}"', config).format()
    install("mine", f"from rlcore import Config\n{body}")
    assert loaded("mine", strict=True).registry.find(Kind.ENGINE, "lazy", "--engine").config is EngineConfig


def test_the_names_of_settings_are_those_of_a_run() -> None:
    fields = fields_of(RunConfig)
    assert fields.keys() == SETTINGS
    assert {name for name, field in fields.items() if field.annotation is float} == NUMBERS
