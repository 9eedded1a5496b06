"""What rlcore offers: every public name, and where it is defined.

`from rlcore import Sample` loads the module of that name and no other. What is not listed here is rlcore's
own and may change at any time.
"""

# --- the contract: the nouns, and what a plugin of each kind implements ---
from .api.batch import (
    ROUTED_EXPERTS as ROUTED_EXPERTS,
)
from .api.batch import (
    TrainBatch as TrainBatch,
)
from .api.batch import (
    token_ranges as token_ranges,
)
from .api.callback import (
    Callback as Callback,
)
from .api.callback import (
    RunControl as RunControl,
)
from .api.chat import (
    compile_template as compile_template,
)
from .api.chat import (
    render_chat as render_chat,
)
from .api.chat import (
    render_prompt as render_prompt,
)
from .api.chat import (
    render_suffix as render_suffix,
)
from .api.chat import (
    template_text as template_text,
)
from .api.config import (
    Config as Config,
)
from .api.config import (
    absolute_path as absolute_path,
)
from .api.config import (
    flag_name as flag_name,
)
from .api.dtypes import (
    DTYPE_NAMES as DTYPE_NAMES,
)
from .api.dtypes import (
    DTYPE_OF_NAME as DTYPE_OF_NAME,
)
from .api.dtypes import (
    torch_dtype as torch_dtype,
)
from .api.engine import (
    TOKEN_VARIABLE as TOKEN_VARIABLE,
)
from .api.engine import (
    Engine as Engine,
)
from .api.engine import (
    EngineLaunch as EngineLaunch,
)
from .api.engine import (
    ServerCommand as ServerCommand,
)
from .api.errors import (
    CheckpointError as CheckpointError,
)
from .api.errors import (
    ConfigError as ConfigError,
)
from .api.errors import (
    DataError as DataError,
)
from .api.errors import (
    DeltaError as DeltaError,
)
from .api.errors import (
    EngineError as EngineError,
)
from .api.errors import (
    LogProbGapError as LogProbGapError,
)
from .api.errors import (
    MissingEngineError as MissingEngineError,
)
from .api.errors import (
    MissingPackageError as MissingPackageError,
)
from .api.errors import (
    ModelError as ModelError,
)
from .api.errors import (
    NotFiniteError as NotFiniteError,
)
from .api.errors import (
    PluginError as PluginError,
)
from .api.errors import (
    RlcoreError as RlcoreError,
)
from .api.errors import (
    RunError as RunError,
)
from .api.errors import (
    StaleWeightsError as StaleWeightsError,
)
from .api.errors import (
    UserError as UserError,
)
from .api.errors import (
    WorkerError as WorkerError,
)
from .api.errors import (
    did_you_mean as did_you_mean,
)
from .api.generation import (
    CheckingGenerator as CheckingGenerator,
)
from .api.generation import (
    ClosableGenerator as ClosableGenerator,
)
from .api.generation import (
    Completion as Completion,
)
from .api.generation import (
    GenerationClient as GenerationClient,
)
from .api.generation import (
    GenerationContext as GenerationContext,
)
from .api.generation import (
    Generator as Generator,
)
from .api.generation import (
    GroupGenerator as GroupGenerator,
)
from .api.generation import (
    GroupScorer as GroupScorer,
)
from .api.hookspecs import (
    hookimpl as hookimpl,
)
from .api.inputs import (
    TEACHER_TOP_LOG_PROBS as TEACHER_TOP_LOG_PROBS,
)
from .api.inputs import (
    TOP_IDS as TOP_IDS,
)
from .api.inputs import (
    Input as Input,
)
from .api.inputs import (
    TopTokens as TopTokens,
)
from .api.inputs import (
    TrainsOn as TrainsOn,
)
from .api.maths import (
    KlKind as KlKind,
)
from .api.maths import (
    Normalizer as Normalizer,
)
from .api.maths import (
    band_weights as band_weights,
)
from .api.maths import (
    discounted_sums as discounted_sums,
)
from .api.maths import (
    gae as gae,
)
from .api.maths import (
    group_advantages as group_advantages,
)
from .api.maths import (
    group_mean as group_mean,
)
from .api.maths import (
    group_std as group_std,
)
from .api.maths import (
    importance_ratio as importance_ratio,
)
from .api.maths import (
    indices_of as indices_of,
)
from .api.maths import (
    leave_one_out_baseline as leave_one_out_baseline,
)
from .api.maths import (
    log_ratio as log_ratio,
)
from .api.maths import (
    masked_mean as masked_mean,
)
from .api.maths import (
    policy_gradient as policy_gradient,
)
from .api.maths import (
    rollout_rewards as rollout_rewards,
)
from .api.maths import (
    segment_mean as segment_mean,
)
from .api.maths import (
    segment_sum as segment_sum,
)
from .api.maths import (
    token_weights as token_weights,
)
from .api.maths import (
    truncated_weights as truncated_weights,
)
from .api.maths import (
    where_live as where_live,
)
from .api.maths import (
    whiten as whiten,
)
from .api.model_facts import (
    ExpertFacts as ExpertFacts,
)
from .api.model_facts import (
    LatentFacts as LatentFacts,
)
from .api.model_facts import (
    ModelFacts as ModelFacts,
)
from .api.model_facts import (
    decoder_facts as decoder_facts,
)
from .api.model_facts import (
    expert_count as expert_count,
)
from .api.model_facts import (
    expert_facts as expert_facts,
)
from .api.model_facts import (
    latent_facts as latent_facts,
)
from .api.model_hook import (
    ModelHook as ModelHook,
)
from .api.model_hook import (
    ModelView as ModelView,
)
from .api.optimizer import (
    LrSchedule as LrSchedule,
)
from .api.optimizer import (
    OptimizerSettings as OptimizerSettings,
)
from .api.optimizer import (
    learning_rate as learning_rate,
)
from .api.part import (
    ModelSpec as ModelSpec,
)
from .api.part import (
    Part as Part,
)
from .api.part import (
    RewardPart as RewardPart,
)
from .api.part_config import (
    AdvantageConfig as AdvantageConfig,
)
from .api.part_config import (
    BatchConfig as BatchConfig,
)
from .api.part_config import (
    CorrectionConfig as CorrectionConfig,
)
from .api.part_config import (
    EngineConfig as EngineConfig,
)
from .api.part_config import (
    FilterConfig as FilterConfig,
)
from .api.part_config import (
    GroupConfig as GroupConfig,
)
from .api.part_config import (
    LossConfig as LossConfig,
)
from .api.part_config import (
    PassingConfig as PassingConfig,
)
from .api.part_config import (
    ProducerConfig as ProducerConfig,
)
from .api.part_config import (
    RewardConfig as RewardConfig,
)
from .api.part_config import (
    TrainerConfig as TrainerConfig,
)
from .api.part_config import (
    ValueLossConfig as ValueLossConfig,
)
from .api.plugin_file import (
    PluginFile as PluginFile,
)
from .api.plugin_file import (
    import_plugin_file as import_plugin_file,
)
from .api.plugin_file import (
    install_plugin_files as install_plugin_files,
)
from .api.producer import (
    Producer as Producer,
)
from .api.producer import (
    ProducerContext as ProducerContext,
)
from .api.producer import (
    Rollout as Rollout,
)
from .api.records import (
    Algorithm as Algorithm,
)
from .api.records import (
    Component as Component,
)
from .api.records import (
    Kind as Kind,
)
from .api.records import (
    ModelFamily as ModelFamily,
)
from .api.records import (
    Source as Source,
)
from .api.run_config import (
    RunConfig as RunConfig,
)
from .api.scoring import (
    CheckedReward as CheckedReward,
)
from .api.scoring import (
    Filter as Filter,
)
from .api.scoring import (
    Reward as Reward,
)
from .api.scoring import (
    Verdict as Verdict,
)
from .api.scoring import (
    accepted_answers as accepted_answers,
)
from .api.server_config import (
    AsksChat as AsksChat,
)
from .api.server_config import (
    AsksScores as AsksScores,
)
from .api.server_config import (
    AsksServer as AsksServer,
)
from .api.server_config import (
    frozen_name as frozen_name,
)
from .api.sources import (
    Cursor as Cursor,
)
from .api.sources import (
    DrawingSource as DrawingSource,
)
from .api.sources import (
    FileBackedSource as FileBackedSource,
)
from .api.sources import (
    PairSource as PairSource,
)
from .api.sources import (
    Prompts as Prompts,
)
from .api.sources import (
    PromptSource as PromptSource,
)
from .api.sources import (
    ResponseSource as ResponseSource,
)
from .api.sources import (
    content_hash as content_hash,
)
from .api.sources import (
    content_share as content_share,
)
from .api.tokens import (
    CHECKED_AHEAD as CHECKED_AHEAD,
)
from .api.tokens import (
    PromptEncoder as PromptEncoder,
)
from .api.tokens import (
    Tokenizer as Tokenizer,
)
from .api.tokens import (
    load_tokenizer as load_tokenizer,
)
from .api.tool_calls import (
    ParsedToolCalls as ParsedToolCalls,
)
from .api.tool_calls import (
    ToolCall as ToolCall,
)
from .api.tool_calls import (
    ToolFormat as ToolFormat,
)
from .api.tool_calls import (
    parse_tool_calls as parse_tool_calls,
)
from .api.tool_calls import (
    tool_format as tool_format,
)
from .api.tracker import (
    RunInfo as RunInfo,
)
from .api.tracker import (
    Tracker as Tracker,
)
from .api.trainer import (
    CHECKSUMS_FILE as CHECKSUMS_FILE,
)
from .api.trainer import (
    ConversionReport as ConversionReport,
)
from .api.trainer import (
    DataRank as DataRank,
)
from .api.trainer import (
    LossResult as LossResult,
)
from .api.trainer import (
    Models as Models,
)
from .api.trainer import (
    Policy as Policy,
)
from .api.trainer import (
    PolicyLoss as PolicyLoss,
)
from .api.trainer import (
    ProgressCallback as ProgressCallback,
)
from .api.trainer import (
    ReferencePolicy as ReferencePolicy,
)
from .api.trainer import (
    Rendezvous as Rendezvous,
)
from .api.trainer import (
    Roles as Roles,
)
from .api.trainer import (
    SavedWeights as SavedWeights,
)
from .api.trainer import (
    Scorer as Scorer,
)
from .api.trainer import (
    Staged as Staged,
)
from .api.trainer import (
    Stateful as Stateful,
)
from .api.trainer import (
    StepResult as StepResult,
)
from .api.trainer import (
    TokenOutputs as TokenOutputs,
)
from .api.trainer import (
    TrainedCritic as TrainedCritic,
)
from .api.trainer import (
    TrainedPolicy as TrainedPolicy,
)
from .api.trainer import (
    Trainer as Trainer,
)
from .api.trainer import (
    TrainerRank as TrainerRank,
)
from .api.trainer import (
    ValueFunction as ValueFunction,
)
from .api.trainer import (
    ValueModel as ValueModel,
)
from .api.training import (
    AdvantageEstimator as AdvantageEstimator,
)
from .api.training import (
    AdvantageOutput as AdvantageOutput,
)
from .api.training import (
    Correction as Correction,
)
from .api.training import (
    CorrectionInputs as CorrectionInputs,
)
from .api.training import (
    Loss as Loss,
)
from .api.training import (
    LossInputs as LossInputs,
)
from .api.training import (
    LossOutput as LossOutput,
)
from .api.training import (
    TokenWeights as TokenWeights,
)
from .api.training import (
    ValueInputs as ValueInputs,
)
from .api.training import (
    ValueLoss as ValueLoss,
)
from .api.trajectory import (
    Trajectory as Trajectory,
)
from .api.trajectory import (
    answered as answered,
)
from .api.trajectory import (
    turn_seed as turn_seed,
)
from .api.types import (
    RECORDED as RECORDED,
)
from .api.types import (
    GenerationStatus as GenerationStatus,
)
from .api.types import (
    Group as Group,
)
from .api.types import (
    Json as Json,
)
from .api.types import (
    Messages as Messages,
)
from .api.types import (
    Prompt as Prompt,
)
from .api.types import (
    RewardStatus as RewardStatus,
)
from .api.types import (
    Sample as Sample,
)
from .api.types import (
    Sampling as Sampling,
)
from .api.types import (
    Score as Score,
)
from .api.types import (
    Span as Span,
)

# --- tools for rewards, generators and commands ---
from .blocking import (
    call_in_thread as call_in_thread,
)

# --- tools for trainers ---
from .checkpoint.folder import (
    COMPLETE_MARKER as COMPLETE_MARKER,
)
from .checkpoint.folder import (
    disk_sentence as disk_sentence,
)
from .checkpoint.folder import (
    write_atomically as write_atomically,
)
from .checkpoint.report import (
    HashingFile as HashingFile,
)
from .checkpoint.report import (
    hashing_file as hashing_file,
)
from .checkpoint.safetensors_stream import (
    SafetensorsShard as SafetensorsShard,
)
from .checkpoint.safetensors_stream import (
    TensorEntry as TensorEntry,
)
from .checkpoint.safetensors_stream import (
    plan_shards as plan_shards,
)
from .checkpoint.safetensors_stream import (
    write_shard_index as write_shard_index,
)
from .checkpoint.safetensors_stream import (
    write_shards as write_shards,
)
from .checkpoint.unpickle import (
    read_pickle as read_pickle,
)
from .checkpoint.unpickle import (
    read_tensors as read_tensors,
)
from .checkpoint.weights_check import (
    check_weights as check_weights,
)
from .checksums import (
    Checksum as Checksum,
)
from .checksums import (
    checksum as checksum,
)
from .compose.models import (
    claimant as claimant,
)
from .compose.models import (
    families as families,
)
from .compose.models import (
    hub_config as hub_config,
)
from .compose.models import (
    read_config_file as read_config_file,
)
from .cpu.allocator import (
    keep_memory as keep_memory,
)
from .cpu.kernels import (
    fits_kernel as fits_kernel,
)
from .cpu.kernels import (
    kernel_linear as kernel_linear,
)
from .cpu.kernels import (
    kernel_swiglu as kernel_swiglu,
)
from .cpu.kernels import (
    times_transposed as times_transposed,
)
from .engines.bucket import (
    bucket_names as bucket_names,
)
from .engines.bucket import (
    flatten_tensors as flatten_tensors,
)
from .engines.classifiers import (
    CLASSIFIER_HEAD as CLASSIFIER_HEAD,
)
from .engines.classifiers import (
    REWARD_HEAD as REWARD_HEAD,
)
from .engines.classifiers import (
    classifier_of as classifier_of,
)
from .engines.classifiers import (
    is_decoder as is_decoder,
)

# --- tools for engines ---
from .engines.client import (
    EngineClient as EngineClient,
)
from .engines.client import (
    PauseMode as PauseMode,
)
from .engines.client_wire import (
    Capabilities as Capabilities,
)
from .engines.delta import (
    apply_delta as apply_delta,
)
from .engines.group import (
    BroadcastGroup as BroadcastGroup,
)
from .engines.publish import (
    FilePublisher as FilePublisher,
)
from .engines.publish import (
    Publisher as Publisher,
)
from .engines.publish_file import (
    WeightsLocation as WeightsLocation,
)
from .engines.publish_file import (
    tensor_layout as tensor_layout,
)
from .engines.ways import (
    MEGABYTE as MEGABYTE,
)
from .engines.ways import (
    far_ways as far_ways,
)
from .engines.ways import (
    publisher_of as publisher_of,
)
from .heap import (
    settle_heap as settle_heap,
)
from .limits import (
    MOST_LOGITS as MOST_LOGITS,
)
from .limits import (
    ROWS_AT_ONCE as ROWS_AT_ONCE,
)
from .machine import (
    has_gpu as has_gpu,
)
from .network import (
    free_port as free_port,
)
from .network import (
    listen as listen,
)
from .network import (
    stay_on as stay_on,
)
from .plugins.registry import (
    Registry as Registry,
)
from .presets import (
    TINY_SIZES as TINY_SIZES,
)
from .presets import (
    TINY_SUGGESTS as TINY_SUGGESTS,
)
from .presets import (
    write_tiny_model as write_tiny_model,
)

__all__: list[str]
__version__: str
