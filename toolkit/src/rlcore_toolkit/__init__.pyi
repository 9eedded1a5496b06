"""What the toolkit offers: every name, and where it is defined."""

from .blocking import (
    call_in_thread as call_in_thread,
    favor_event_loop as favor_event_loop,
)
from .config_facts import (
    decoder_facts as decoder_facts,
    expert_facts as expert_facts,
    is_decoder as is_decoder,
    latent_facts as latent_facts,
)
from .cpu_kernels import (
    by_rows as by_rows,
    copy_into as copy_into,
    fits_kernel as fits_kernel,
    for_few_rows as for_few_rows,
    kernel_linear as kernel_linear,
    kernel_rms_norm as kernel_rms_norm,
    kernel_swiglu as kernel_swiglu,
    times_transposed as times_transposed,
)
from .hashing_file import (
    HashingFile as HashingFile,
    hashing_file as hashing_file,
)
from .host import (
    own_address as own_address,
    stay_on as stay_on,
    watch_processes as watch_processes,
)
from .limits import (
    MOST_LOGITS as MOST_LOGITS,
    ROWS_AT_ONCE as ROWS_AT_ONCE,
)
from .load_object import (
    load_object as load_object,
)
from .machine import (
    has_gpu as has_gpu,
    has_gpu_for as has_gpu_for,
    has_gpu_here as has_gpu_here,
)
from .offload import (
    Offload as Offload,
    host_copy as host_copy,
)
from .partial import (
    Partial as Partial,
    RequestKey as RequestKey,
)
from .presets import (
    TINY_SIZES as TINY_SIZES,
    TINY_SUGGESTS as TINY_SUGGESTS,
    write_tiny_model as write_tiny_model,
)
from .publishers.broadcast_group import (
    BroadcastGroup as BroadcastGroup,
)
from .publishers.bucket import (
    flatten_tensors as flatten_tensors,
)
from .publishers.by_name import (
    MEGABYTE as MEGABYTE,
    cross_host_ways as cross_host_ways,
    publisher_of as publisher_of,
    publisher_room as publisher_room,
)
from .publishers.delta import (
    apply_delta as apply_delta,
)
from .publishers.stream import (
    StreamPublisher as StreamPublisher,
)
from .request_gate import (
    ContinuingContext as ContinuingContext,
    RequestGate as RequestGate,
)
from .safetensors_stream import (
    SafetensorsShard as SafetensorsShard,
    TensorEntry as TensorEntry,
    plan_shards as plan_shards,
    write_shard_index as write_shard_index,
    write_shards as write_shards,
)
from .sample_view import (
    SampleView as SampleView,
)
from .sglang_router_launch import (
    SGLANG_ROUTERS as SGLANG_ROUTERS,
)
from .silent_connections import (
    KEEPALIVE_S as KEEPALIVE_S,
    SilentConnections as SilentConnections,
)
from .tool_calls import (
    ParsedToolCalls as ParsedToolCalls,
    ToolCall as ToolCall,
    ToolFormat as ToolFormat,
    parse_tool_calls as parse_tool_calls,
    tool_format as tool_format,
)
from .trajectory import (
    Trajectory as Trajectory,
    answered as answered,
    turn_seed as turn_seed,
)

__all__: list[str]
