"""What the toolkit offers: every name, and where it is defined."""

from .adapter_settings import (
    adapter_of as adapter_of,
)
from .alerts import (
    Alert as Alert,
    Alerts as Alerts,
)
from .bins import (
    Bins as Bins,
    in_order as in_order,
    rank_bins as rank_bins,
)
from .blocking import (
    call_in_thread as call_in_thread,
)
from .borrowed_kernels import (
    MEASURES as MEASURES,
    PROBE_TOKENS as PROBE_TOKENS,
    TOLERANCES as TOLERANCES,
    BorrowedKernels as BorrowedKernels,
    gaps as gaps,
)
from .chats import (
    compile_template as compile_template,
    render_prompt as render_prompt,
    render_suffix as render_suffix,
)
from .chosen_keys import (
    packed_keys as packed_keys,
    unpacked_keys as unpacked_keys,
)
from .complaints import (
    complaints_of as complaints_of,
)
from .config_facts import (
    decoder_facts as decoder_facts,
    delta_facts as delta_facts,
    expert_facts as expert_facts,
    expert_width as expert_width,
    indexed_layers as indexed_layers,
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
from .fences import (
    fenced_blocks as fenced_blocks,
)
from .fp8 import (
    FP8_DTYPE as FP8_DTYPE,
    dequantize_fp8 as dequantize_fp8,
    quantize_fp8 as quantize_fp8,
    scales_shape as scales_shape,
)
from .hf_directory import (
    MAX_SHARD_BYTES as MAX_SHARD_BYTES,
    carry_files as carry_files,
    check_new as check_new,
    check_space as check_space,
)
from .host import (
    own_address as own_address,
    stay_on as stay_on,
    watch_processes as watch_processes,
)
from .http_log import (
    shorten_http_log as shorten_http_log,
)
from .larger_model import (
    decoder_config as decoder_config,
)
from .layer_kernels import (
    liger_kernels as liger_kernels,
    use_kernels as use_kernels,
)
from .limits import (
    MOST_LOGITS as MOST_LOGITS,
    MOST_ON_HOST as MOST_ON_HOST,
    ROWS_AT_ONCE as ROWS_AT_ONCE,
)
from .load_object import (
    load_object as load_object,
    require_packages as require_packages,
)
from .log_probs import (
    HiddenRows as HiddenRows,
    Logits as Logits,
    response_log_probs as response_log_probs,
    vocab_parallel_log_probs as vocab_parallel_log_probs,
    vocab_parallel_top as vocab_parallel_top,
)
from .lora import (
    adapted_modules as adapted_modules,
    first_a as first_a,
    is_adaptable as is_adaptable,
    linear_modules as linear_modules,
    targeted as targeted,
    with_product as with_product,
)
from .machine import (
    has_gpu as has_gpu,
    has_gpu_for as has_gpu_for,
    has_gpu_here as has_gpu_here,
)
from .maths import (
    advantage_covariance as advantage_covariance,
    band_weights as band_weights,
    discounted_sums as discounted_sums,
    gae as gae,
    group_advantages as group_advantages,
    group_mean as group_mean,
    group_std as group_std,
    leave_one_out_baseline as leave_one_out_baseline,
    policy_gradient as policy_gradient,
    rollout_rewards as rollout_rewards,
    segment_mean as segment_mean,
    truncated_weights as truncated_weights,
)
from .offload import (
    HostWeights as HostWeights,
    ModelOffload as ModelOffload,
    Offload as Offload,
)
from .partial import (
    Partial as Partial,
    RequestKey as RequestKey,
)
from .peft_files import (
    ADAPTER_FILE as ADAPTER_FILE,
    adapter_name as adapter_name,
    adapter_place as adapter_place,
    published_adapter as published_adapter,
    read_adapter as read_adapter,
    read_adapter_config as read_adapter_config,
    write_adapter as write_adapter,
    write_merged as write_merged,
)
from .planning.engines import (
    BUCKET_MB as BUCKET_MB,
    CACHE as CACHE,
    ENOUGH as ENOUGH,
    LARGE_SHARE as LARGE_SHARE,
    SERVED as SERVED,
    SLEEP_MARKS as SLEEP_MARKS,
    SLEEPS as SLEEPS,
    generation as generation,
)
from .planning.planner import (
    Bounds as Bounds,
    Machines as Machines,
    Phase as Phase,
    Plan as Plan,
    PlannedLayout as PlannedLayout,
    Planner as Planner,
    PlanQuestion as PlanQuestion,
    shortage as shortage,
)
from .planning.published import (
    facts_of as facts_of,
    read_config as read_config,
    read_facts as read_facts,
)
from .planning.run_file import (
    Fields as Fields,
    RunFile as RunFile,
    gpu_engine as gpu_engine,
)
from .planning.units import (
    GB as GB,
    MB as MB,
    count_text as count_text,
    counted as counted,
    size_text as size_text,
)
from .presets import (
    TINY_DEEPSEEK as TINY_DEEPSEEK,
    TINY_LATENT as TINY_LATENT,
    TINY_SIZES as TINY_SIZES,
    TINY_SPARSE as TINY_SPARSE,
    TINY_SUGGESTS as TINY_SUGGESTS,
    write_tiny_model as write_tiny_model,
)
from .process_group import (
    current_device as current_device,
    join_group as join_group,
    leave_group as leave_group,
    random_states as random_states,
    set_random_states as set_random_states,
    set_seeds as set_seeds,
)
from .prompt_trees import (
    PackLayout as PackLayout,
    Piece as Piece,
    prompt_trees as prompt_trees,
    tree_order as tree_order,
)
from .publishers.broadcast_group import (
    BroadcastGroup as BroadcastGroup,
)
from .publishers.bucket import (
    flatten_tensors as flatten_tensors,
)
from .publishers.by_name import (
    cross_host_ways as cross_host_ways,
    publisher_of as publisher_of,
    publisher_room as publisher_room,
)
from .publishers.delta import (
    apply_delta as apply_delta,
)
from .publishers.file_publisher import (
    DiskPublisher as DiskPublisher,
    FilePublisher as FilePublisher,
)
from .publishers.stream import (
    StreamPublisher as StreamPublisher,
)
from .publishers.version import (
    checksums_of as checksums_of,
    disk_room as disk_room,
    new_version as new_version,
    on_wire as on_wire,
    save_weights as save_weights,
    wire_bytes as wire_bytes,
    wire_tensors as wire_tensors,
    write_version as write_version,
)
from .rank_sums import (
    loss_sums as loss_sums,
    rank_most as rank_most,
    rank_sums as rank_sums,
    write_together as write_together,
)
from .readable_copy import (
    readable_copy as readable_copy,
    write_file as write_file,
)
from .request_gate import (
    ContinuingContext as ContinuingContext,
    RequestGate as RequestGate,
)
from .safetensors_files import (
    SafetensorsFiles as SafetensorsFiles,
)
from .safetensors_stream import (
    HashingFile as HashingFile,
    SafetensorsShard as SafetensorsShard,
    TensorEntry as TensorEntry,
    hashing_file as hashing_file,
    plan_shards as plan_shards,
    write_directory as write_directory,
    write_shard_index as write_shard_index,
    write_shards as write_shards,
)
from .sample_metrics import (
    sample_metrics as sample_metrics,
)
from .sample_view import (
    SampleView as SampleView,
)
from .schedule import (
    learning_rate as learning_rate,
)
from .sglang_router_launch import (
    SGLANG_ROUTERS as SGLANG_ROUTERS,
)
from .silent_connections import (
    KEEPALIVE_S as KEEPALIVE_S,
    SilentConnections as SilentConnections,
)
from .swapped import (
    SwappedModel as SwappedModel,
)
from .tensor_file import (
    read_tensors as read_tensors,
    write_tensors as write_tensors,
)
from .token_spans import (
    token_spans as token_spans,
)
from .tool_calls import (
    ParsedToolCalls as ParsedToolCalls,
    ToolCall as ToolCall,
    ToolFormat as ToolFormat,
    parse_tool_calls as parse_tool_calls,
    tool_format as tool_format,
)
from .trajectory import (
    ChatTrajectory as ChatTrajectory,
    Trajectory as Trajectory,
    answered as answered,
    turn_seed as turn_seed,
)
from .varlen import (
    fits_varlen as fits_varlen,
    varlen_attention as varlen_attention,
)
from .weight_names import (
    WeightNames as WeightNames,
)

__all__: list[str]
