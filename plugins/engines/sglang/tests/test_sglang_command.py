"""The server's command, and the checks before a process starts."""

import os
import stat
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from launches import TOKEN, launch

from rlcore import ConfigError, MissingEngineError, RunConfig
from rlcore_sglang import cpu, heads
from rlcore_sglang.config import SglangConfig
from rlcore_sglang.engine import SglangEngine
from rlcore_sglang.fields import ServerFields, arguments, check_fields, nodes_of, server_fields
from rlcore_toolkit.host import loopback_interface


@pytest.fixture(scope="module")
def known() -> ServerFields:
    """Of the newest version in the committed list: this interpreter has no sglang."""
    return server_fields(None, {})


@pytest.fixture
def sglang_python(tmp_path: Path) -> str:
    """An interpreter with a distribution `sglang` 0.5.23 (its metadata; no server)."""
    folder = tmp_path / "site" / "sglang-0.5.23.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.23\n")
    script = tmp_path / "python"
    script.write_text(
        f'#!/bin/sh\nexport PYTHONPATH={tmp_path}/site:$PYTHONPATH\nexec {sys.executable} "$@"\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


def test_fields_are_refused_by_the_table_that_has_them(known: ServerFields) -> None:
    with pytest.raises(ConfigError, match=r"^--frozen\.judge\.tp-siez is no setting .* 'tp_size'"):
        check_fields({"tp_siez": "2"}, known, table="frozen.judge")
    assert check_fields({"context_length": "4096"}, known, table="frozen.judge") == {"context_length": 4096}
    with pytest.raises(ConfigError, match=r"^--sglang\.context-length is not set here, but by --max-prompt"):
        check_fields({"context_length": "4096"}, known)


def test_a_cpu_server_gets_the_platform_and_the_users_fields(sglang_python: str) -> None:
    engine = SglangEngine(SglangConfig(python=sglang_python, dtype="bf16"))
    command = engine.command(launch(fields={"max-total-tokens": "4096", "disable_radix_cache": True}))
    line = " ".join(command.argv)
    assert TOKEN not in line
    assert "--dtype bfloat16 --context-length 256 --random-seed 3" in line
    assert "--device cpu" in line
    assert "--max-total-tokens 4096" in line
    assert line.endswith("--disable-radix-cache")
    assert command.env["PYTHONPATH"] == str(cpu.SITE)
    assert "--is-embedding" not in line
    assert heads.VARIABLE not in command.env


def test_a_server_of_a_classifier_gets_what_it_needs(
    sglang_python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(heads.VARIABLE, raising=False)
    engine, scores = SglangEngine(SglangConfig(python=sglang_python)), launch(classifier=True)
    command = engine.command(scores)
    assert "--is-embedding" in command.argv
    assert command.env["PYTHONPATH"].split(os.pathsep) == [str(heads.SITE), str(cpu.SITE)]
    assert command.env[heads.VARIABLE] == heads.PACKAGE
    monkeypatch.setenv(heads.VARIABLE, "my_models")
    assert engine.command(scores).env[heads.VARIABLE] == "my_models"


@pytest.mark.parametrize(("size", "shares"), [("1", None), ("3", 3)])
def test_ranks_share_the_cpus(
    sglang_python: str, monkeypatch: pytest.MonkeyPatch, size: str, shares: int | None
) -> None:
    """SGLang would have none of several where there is but one NUMA node."""
    monkeypatch.delenv("SGLANG_CPU_OMP_THREADS_BIND", raising=False)
    engine, several = SglangEngine(SglangConfig(python=sglang_python)), launch(fields={"tp-size": size})
    env = engine.command(several).env
    every = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    wanted = "|".join([every] * shares) if shares else None
    assert env.get("SGLANG_CPU_OMP_THREADS_BIND") == wanted
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0|1|1")
    assert engine.command(several).env.get("SGLANG_CPU_OMP_THREADS_BIND", "0|1|1") == "0|1|1"


@pytest.mark.parametrize(
    ("host", "meeting", "stays"),
    [
        ("127.0.0.1", None, True),
        ("127.0.0.1", "127.0.0.1:5000", True),
        ("127.0.0.1", "10.0.0.1:5000", False),
        ("10.0.0.2", None, False),
    ],
)
def test_ranks_of_one_host_stay_on_its_loopback(
    sglang_python: str, monkeypatch: pytest.MonkeyPatch, host: str, meeting: str | None, stays: bool
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    engine, node = (
        SglangEngine(SglangConfig(python=sglang_python)),
        launch(host=host, meeting=meeting, node=1),
    )
    loopback = loopback_interface("127.0.0.1")
    assert engine.command(node).env.get("GLOO_SOCKET_IFNAME") == (loopback if stays else None)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "chosen")
    command = engine.command(node)
    assert command.env.get("GLOO_SOCKET_IFNAME", "chosen") == "chosen"
    assert (f"--node-rank 1 --dist-init-addr {meeting}" in " ".join(command.argv)) == bool(meeting)


def test_a_missing_sglang_says_what_installs_it() -> None:
    engine = SglangEngine(SglangConfig())
    with pytest.raises(
        MissingEngineError, match=r"pip install 'sglang>=0\.5\.12,<0\.6'.*sglang_cpu_venv\.sh"
    ):
        engine.check({}, table="sglang")


def test_an_interpreter_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match=r"--engine\.python /no/such/python cannot be run"):
        SglangEngine(SglangConfig(python="/no/such/python")).check({}, table="sglang")


def test_an_unsupported_version_is_refused(sglang_python: str, tmp_path: Path) -> None:
    (tmp_path / "site" / "sglang-0.5.23.dist-info").rename(tmp_path / "site" / "sglang-0.4.1.dist-info")
    metadata = tmp_path / "site" / "sglang-0.4.1.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("0.5.23", "0.4.1"))
    with pytest.raises(ConfigError, match=r"sglang 0\.4\.1 is installed .*supported is sglang>=0\.5\.12"):
        SglangEngine(SglangConfig(python=sglang_python)).check({}, table="sglang")


def test_unknown_fields_are_refused_with_a_suggestion(known: ServerFields) -> None:
    with pytest.raises(ConfigError, match=r"--sglang\.tp-sise is no setting .*Did you mean 'tp_size'"):
        check_fields({"tp-sise": 2}, known)


@pytest.mark.parametrize(
    "name", ["host", "port", "model_path", "api-key", "random_seed", "node-rank", "config"]
)
def test_fields_that_rlcore_sets_are_refused(known: ServerFields, name: str) -> None:
    with pytest.raises(ConfigError, match="is not set here, but by"):
        check_fields({name: "1"}, known)


@pytest.mark.parametrize(
    ("name", "value", "argv"),
    [
        ("tp_size", "2", ["--tp-size", "2"]),
        ("mem-fraction-static", 0.5, ["--mem-fraction-static", "0.5"]),
        ("disable_radix_cache", "true", ["--disable-radix-cache"]),
        ("disable_radix_cache", False, []),
        ("enable_tf32_matmul", False, ["--no-enable-tf32-matmul"]),
        ("fp8_gemm_runner_backend", "triton", ["--fp8-gemm-backend", "triton"]),
        ("cuda_graph_bs_decode", [1, 2], ["--cuda-graph-bs-decode", "1", "2"]),
        ("cuda_graph_bs_decode", "1,2", ["--cuda-graph-bs-decode", "1", "2"]),
        ("speculative_algorithm", "NGRAM", ["--speculative-algorithm", "NGRAM"]),
        ("disaggregation_mode", "prefill", ["--disaggregation-mode", "prefill"]),
        ("nnodes", "2", ["--nnodes", "2"]),
    ],
)
def test_fields_become_flags(known: ServerFields, name: str, value: Any, argv: list[str]) -> None:
    assert arguments(check_fields({name: value}, known), known) == argv


@pytest.mark.parametrize(
    ("name", "value"),
    [("tp_size", "two"), ("tp_size", True), ("mem_fraction_static", "x"), ("disable_radix_cache", 3)],
)
def test_values_of_another_type_are_refused(known: ServerFields, name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=r"takes a value of type (int|float|bool), not"):
        check_fields({name: value}, known)


def test_importing_the_engine_needs_no_torch() -> None:
    code = (
        "import sys, rlcore_sglang.plugin, rlcore_sglang.engine\n"
        "sys.exit(bool({'torch', 'ray', 'transformers', 'aiohttp'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_an_interpreter_by_its_path_is_found_again_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "python").symlink_to("/bin/sh")
    assert SglangConfig(python="./python").python == str(tmp_path / "python"), "not what it links to"
    assert SglangConfig(python="python3").python == "python3"


@pytest.mark.parametrize(
    ("fields", "nodes"),
    [
        ({}, 1),
        ({"tp-size": "4", "nnodes": "2"}, 2),
        ({"tensor_parallel_size": 2, "pp_size": 3, "nnodes": 6}, 6),
        ({"nnodes": 2}, None),
        ({"tp_size": 4, "nnodes": 3}, None),
        ({"tp_size": 4, "nnodes": 0}, None),
    ],
)
def test_nodes_divide_the_ranks(fields: dict[str, Any], nodes: int | None) -> None:
    if nodes is not None:
        assert nodes_of(fields) == nodes
        return
    with pytest.raises(ConfigError, match=r"--sglang\.nnodes: found \d, which does not divide the \d ranks"):
        nodes_of(fields)


def test_nodes_that_do_not_divide_are_refused_with_the_other_fields() -> None:
    with pytest.raises(ConfigError, match=r"^--sglang\.nnodes: found 3"):
        SglangEngine(SglangConfig()).check_fields({"tp_size": "16", "nnodes": "3"})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, None),
        ({"tp-size": "7"}, None),
        ({"tensor_parallel_size": 8}, r"^--sglang\.tp-size: found 8, but .* expected a divisor of 28\.$"),
        ({"tp_size": 8, "dp_size": 2, "enable_dp_attention": True}, None),
        ({"tp_size": 16, "dp_size": 2, "enable_dp_attention": "true"}, r"found 16 in 2 groups .* of 28\.$"),
        ({"tp_size": 8, "dp_size": 2}, "found 8, but"),
    ],
)
def test_ranks_of_an_engine_divide_the_heads(fields: dict[str, Any], said: str | None) -> None:
    engine = SglangEngine(SglangConfig())
    engine.check_layout(fields, {"text_config": {}})  # a model that says its heads elsewhere
    with pytest.raises(ConfigError, match=said) if said else nullcontext():
        engine.check_layout(fields, {"num_attention_heads": 28})


@pytest.mark.parametrize(
    ("fields", "devices"),
    [
        ({"tp-size": "4", "pp_size": 2}, 8),
        ({"tp_size": 4, "dp_size": 2}, 8),
        ({"tp_size": 4, "dp_size": 2, "enable-dp-attention": "true"}, 4),
    ],
)
def test_gpus_of_an_engine(fields: dict[str, Any], devices: int) -> None:
    """Attention that is divided by data is on the GPUs that the model is on anyway."""
    assert SglangEngine(SglangConfig()).devices(fields) == devices


EAGLE = {"speculative-algorithm": "EAGLE", "speculative_num_steps": "3"}


@pytest.mark.parametrize(
    ("fields", "run", "said"),
    [
        (EAGLE, {}, None),
        ({"speculative_draft_model_path": "draft"}, {"min_p": 0.1}, None),
        (
            {**EAGLE, "speculative-accept-threshold-acc": "0.9"},
            {},
            "--sglang.speculative-accept-threshold-acc: found 0.9",
        ),
        ({**EAGLE, "speculative_accept_threshold_single": 1.0}, {}, None),
        (EAGLE, {"min_p": 0.1}, "--min-p: found 0.1, which SGLang leaves out where it speculates"),
        (
            {**EAGLE, "speculative-draft-model-path": "d"},
            {},
            "--sglang.speculative-draft-model-path: found d, but",
        ),
        ({"quantization": "fp8"}, {}, "--sglang.quantization: found fp8, but SGLang takes new weights into"),
        ({"quantization": "fp8", "load-format": "flash_rl"}, {}, None),
        ({"quantization": "fp8"}, {"only": "rollout"}, None),
    ],
)
def test_what_would_not_stay_the_policy(
    fields: dict[str, Any], run: dict[str, Any], said: str | None
) -> None:
    complaints = [*SglangConfig().complaints(RunConfig.of(**run), fields)]
    assert [one.partition(said)[1] for one in complaints] == [said] if said else complaints == []


@pytest.mark.parametrize("publish", ["tensor", "broadcast", "disk"])
def test_replicas_take_weights_from_files_alone(publish: str) -> None:
    config, replicas = SglangConfig.model_validate({"publish": publish}), {"dp-size": "2"}
    complaints = [*config.complaints(RunConfig(), replicas)]
    assert [f"found {publish}, by which SGLang" in one for one in complaints] == [True] * (publish != "disk")
    assert not [*config.complaints(RunConfig(), {**replicas, "enable-dp-attention": "true"})]


def test_speculation_needs_a_gpu(sglang_python: str) -> None:
    with pytest.raises(
        ConfigError, match=r"^--sglang\.speculative-algorithm: where SGLang speculates without a"
    ):
        SglangEngine(SglangConfig(python=sglang_python)).check(EAGLE)


def test_prefill_and_decode_apart(sglang_python: str) -> None:
    """Each server for prefill has a port of its own, which the router is told."""
    engine = SglangEngine(SglangConfig(python=sglang_python))
    fields = engine.fields_of(2, {"disaggregation-mode": "prefill", "disaggregation-bootstrap-port": "9000"})
    assert engine.router_role(fields) == {"worker_type": "prefill", "bootstrap_port": 9002}
    line = " ".join(engine.command(launch(fields=fields)).argv)
    assert "--disaggregation-mode prefill" in line
    assert "--disaggregation-bootstrap-port 9002" in line
    fields = engine.fields_of(1, {"disaggregation_mode": "prefill"})
    assert engine.router_role(fields)["bootstrap_port"] == 8999
    decode = engine.fields_of(3, {"disaggregation_mode": "decode"})
    assert engine.router_role(decode) == {"worker_type": "decode"}
    assert engine.router_role({}) == {}
    (complaint,) = SglangConfig().complaints(RunConfig(), decode)
    assert complaint.startswith("--sglang.disaggregation-mode: found decode, but only a router asks")
    assert not [*SglangConfig().complaints(RunConfig.of(router="cache_aware"), decode)]
