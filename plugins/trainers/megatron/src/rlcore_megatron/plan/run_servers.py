"""From the TOML of a run to its servers: engines, in groups or not, and models that it never trains."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlcore import (
    CLASSIFIER_HEAD,
    REWARD_HEAD,
    ConfigError,
    ModelError,
    ModelFacts,
    check_engine_placement,
    classifier_of,
    engine_count,
    fp8_block,
)
from rlcore_megatron.plan.engines import Engines, Frozen
from rlcore_megatron.plan.layout import Layout
from rlcore_megatron.plan.memory import BYTES
from rlcore_megatron.plan.phases import Run
from rlcore_megatron.plan.search import powers
from rlcore_megatron.plan.settings import trained_by
from rlcore_toolkit import LARGE_SHARE, Fields, RunFile, facts_of, read_config

ENGINE, GROUP, FROZEN = "sglang", "engine_group", "frozen"
MOST_ENGINES = 1024
"""The bound of `--engines`."""
MOST_STAGES = 8
"""The most pipeline stages of an engine, where nothing says how many."""
CAUSAL = "ForCausalLM"
FOUR, EIGHT = ("fp4", "int4", "awq", "gptq"), ("fp8", "int8")
"""What names of quantizations hold, by the bits of a weight."""


def run_of(file: RunFile, config: Mapping[str, Any], facts: ModelFacts, layout: Layout) -> Run:
    """What the run does beside training. `config`: the model's config.json, `facts`: of it. ConfigError."""
    _check_fields(file)
    run = run_without_engines(file, config, facts, layout)
    return replace(run, engines=engines_of(file, config, layout))


def run_without_engines(file: RunFile, config: Mapping[str, Any], facts: ModelFacts, layout: Layout) -> Run:
    """The same, without the engines that generate. ConfigError."""
    sends_fp8 = fp8_block(config.get("quantization_config")) is not None
    return replace(trained_by(file, facts, layout), frozen=tuple(_frozen(file)), sends_fp8=sends_fp8)


def engines_of(file: RunFile, config: Mapping[str, Any], layout: Layout) -> tuple[Engines, ...]:
    """The engines that generate, each group. ConfigError for those that a run would refuse."""
    own = _engines(file.but(ranks=layout.world)) if file.generates and computes_on_gpus(file) else ()
    engines = tuple(_quantized(each, config) for each in own)
    if len({each.gpus for each in engines}) > 1:
        sizes = ", ".join(f"{each.group}: {each.gpus}" for each in engines)
        raise ConfigError(
            f"--config {file.path}: {GROUP}: found engines of several sizes ({sizes} GPUs), expected the "
            "same for all."
        )
    _check_placement(file, config, layout, engines)
    return engines


def engines_on(
    file: RunFile, config: Mapping[str, Any], gpus: int, per_node: int
) -> Iterator[tuple[Engines, ...]]:
    """Engines that take `gpus` GPUs together, the smallest first; in stages where no other way divides the
    model.
    """
    server = file.fields(ENGINE)
    given = server.size("pp_size")
    stages = [given] if "pp_size" in server.values else powers(MOST_STAGES)
    for size in (given * share for share in powers(gpus // given)):
        if gpus % size == 0 and gpus // size <= MOST_ENGINES:
            ways = (_of_size(file, config, gpus, size, pipeline, per_node) for pipeline in stages)
            yield from itertools.islice(filter(None, ways), 1)


def _of_size(
    file: RunFile, config: Mapping[str, Any], gpus: int, size: int, pipeline: int, per_node: int
) -> tuple[Engines, ...]:
    """Engines of `size` GPUs in `pipeline` stages; empty: their GPUs do not divide the attention heads."""
    if size % pipeline:
        return ()
    fields = {"tp_size": size // pipeline, "pp_size": pipeline, "nnodes": max(1, size // per_node)}
    own = {f"{ENGINE}.{name}": value for name, value in fields.items()}
    try:
        return engines_of(file.but(engines=gpus // size, **own), config, Layout(world=gpus))
    except ConfigError:
        return ()


def by_sleep(
    groups: Sequence[tuple[Engines, ...]], sleeps: Sequence[str]
) -> dict[str, Sequence[tuple[Engines, ...]]]:
    """The engines to choose from under each value of `--sleep`.

    Where the whole trainer sleeps, they may have `LARGE_SHARE` of a GPU's memory too.
    """
    large = [tuple(replace(engines, share=LARGE_SHARE) for engines in group) for group in groups]
    return {sleep: [*groups, *(large if sleep == "all" else ())] for sleep in sleeps}


def _check_fields(file: RunFile) -> None:
    """ConfigError for a field of a server that its engine does not take."""
    if (engine := file.engine) is None:
        return
    engine.check_fields(file.fields(ENGINE).values)
    for kind in (GROUP, FROZEN):
        for name in _named(file, kind):
            own = file.fields(f"{kind}.{name}") if kind == FROZEN else _of_group(file, name)
            engine.check_fields(own.values, table=f"{kind}.{name}")


def _check_placement(
    file: RunFile, config: Mapping[str, Any], layout: Layout, engines: Sequence[Engines]
) -> None:
    """ConfigError for engines that a run would refuse: those that no GPUs could hold."""
    if file.engine is None:
        return
    run, count = file.run.but(ranks=layout.world), sum(each.count for each in engines)
    for fields in (_of_group(file, each.group).values for each in engines):
        check_engine_placement(file.engine, run, count, fields, config)


def computes_on_gpus(file: RunFile) -> bool:
    """Whether the run's engines do; others are not planned."""
    return file.engine is None or file.engine.devices(file.fields(ENGINE).values) > 0


def gpus_beside(file: RunFile, run: Run) -> dict[str, int]:
    """GPUs that the run takes beside those of the policy's workers, by what they are for. ConfigError."""
    counts = {f"the {apart.role}": apart.layout.world for apart in run.apart}
    if run.engines and not run.is_colocated:
        counts["engines"] = sum(engines.count * engines.gpus for engines in run.engines)
        if any(name.startswith("eval.") for name in file.settings):
            counts["evaluations"] = int(file.value("eval_engines")) * _server(file, file.fields(ENGINE)).gpus
    counts |= {f"the frozen {frozen.name}": frozen.engines.gpus for frozen in run.frozen}
    return {name: count for name, count in counts.items() if count}


def quantized_bits(method: Any) -> int | None:
    """Bits of a linear layer's weight under a quantization of this name; None: as it is without one."""
    name = str(method or "").lower()
    for bits, words in ((4, FOUR), (8, EIGHT)):
        if any(word in name for word in words):
            return bits
    return None


def _engines(file: RunFile) -> Iterator[Engines]:
    """Each group. Fields of the engine's library by SGLang's names; other engines compute on one GPU."""
    groups = _named(file, GROUP)
    alone = engine_count(file.engine, file.run, file.fields(ENGINE).values) if file.engine else 1
    counts = {name: _count(file, count) for name, count in groups.items()} or {"": alone}
    size, prompts = file.value("group_size"), file.value("prompts_per_step")
    samples = prompts * max(1.0, file.value("over_sample")) * size
    prompt, response = (int(file.value(f"max_{part}_tokens")) for part in ("prompt", "response"))
    roles = {name: _of_group(file, name).text("disaggregation_mode") for name in counts}
    share = file.engine.gpu_share if file.engine and file.value("placement") == "colocate" else None
    for name, count in counts.items():
        # a server that prefills hands over to one that decodes: each half gets all requests
        half = sum(counts[other] for other, role in roles.items() if role == roles[name])
        prefills, requests = roles[name] == "prefill", math.ceil(samples / half)
        yield replace(
            _server(file, _of_group(file, name), requests=requests, share=share),
            group=name,
            count=count,
            tokens=prompt if prefills else prompt + response,
            total=0 if prefills else int(prompts * size * response * count / half),
        )


def _of_group(file: RunFile, name: str) -> Fields:
    shared = file.fields(ENGINE)
    return shared.with_own(file.fields(f"{GROUP}.{name}")) if name else shared


def _server(file: RunFile, fields: Fields, *, requests: int = 1, share: float | None = None) -> Engines:
    """One engine with these fields, which is asked for `requests` of the longest samples. ConfigError.

    `share`: of a GPU's memory, where no field says it.
    """
    concurrency = file.value("engine_concurrency")
    most = min(concurrency, fields.size("max_running_requests", concurrency))
    tensor = fields.size("tp_size")
    parts = fields.size("dp_size") if fields.is_on("enable_dp_attention") else 1
    if tensor % parts:
        raise ConfigError(
            f"--config {file.path}: sglang.dp_size: found {parts}, expected a divisor of sglang.tp_size "
            f"({tensor})."
        )
    is_given, dtype = "mem_fraction_static" in fields.values, file.settings.get("engine.dtype")
    return Engines(
        count=1,
        sequences=max(1, min(requests, most)),
        most=most,
        tokens=file.longest,
        tensor=tensor,
        pipeline=fields.size("pp_size"),
        parts=parts,
        dtype=str(dtype) if dtype in BYTES else None,
        share=fields.number("mem_fraction_static") if is_given else share,
        cache_bytes=1 if fields.text("kv_cache_dtype").startswith("fp8") else None,
        weight_bits=quantized_bits(fields.values.get("quantization")),
        is_drafting="speculative_algorithm" in fields.values,
    )


def _frozen(file: RunFile) -> Iterator[Frozen]:
    """Each model, with the fields of its own server. ConfigError, ModelError."""
    for name, model in _named(file, FROZEN).items():
        fields = file.fields(f"{FROZEN}.{name}")
        config = read_config(model, file.registry)
        engines = _quantized(_server(file, fields), config)
        is_classifier = classifier_of(config) is not None
        yield Frozen(
            name=name, facts=_facts(config, file), engines=replace(engines, is_classifier=is_classifier)
        )


def _quantized(engines: Engines, config: Mapping[str, Any]) -> Engines:
    """Engines whose weights are quantized as config.json says, unless their own fields say it."""
    method = (config.get("quantization_config") or {}).get("quant_method")
    return replace(engines, weight_bits=engines.weight_bits or quantized_bits(method))


def _facts(config: Mapping[str, Any], file: RunFile) -> ModelFacts | None:
    """None: of a family that has no plan. A classifier has the layers of the decoder of its name."""
    scorer = classifier_of(config) or ""
    for head in (CLASSIFIER_HEAD, REWARD_HEAD):
        if scorer.endswith(head):
            config = {**config, "architectures": [scorer.removesuffix(head) + CAUSAL]}
    try:
        return facts_of(config, f"--config {file.path}", file.registry)
    except ModelError:
        return None


def _named(file: RunFile, table: str) -> Mapping[str, str]:
    """`NAME=VALUE` of a list, and `NAME = VALUE` of a table. ConfigError."""
    listed = file.value(table)
    pairs = [str(pair).partition("=") for pair in ([listed] if isinstance(listed, str) else listed)]
    if not all(name and equals and value for name, equals, value in pairs):
        raise ConfigError(f"--config {file.path}: {table}: found {listed}, expected NAME=VALUE each.")
    direct = {
        name: str(value)
        for name, value in file.fields(table).values.items()
        if "." not in name and name not in {key for key, _, _ in pairs}
    }
    return {name: value for name, _, value in pairs} | direct


def _count(file: RunFile, text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ConfigError(f"--config {file.path}: {GROUP}: found {text!r}, expected a number of engines.")
    return int(text)
