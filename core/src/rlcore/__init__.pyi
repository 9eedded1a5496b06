"""What rlcore offers: every public name, and where it is defined.

`from rlcore import Sample` loads the module of that name and no other. What is not listed here is rlcore's
own and may change at any time.
"""

# --- what rlcore-cli brings: its types, which a checker alone reads ---
import rlcore_cli.from_python as _cli

# --- the contract: the nouns, and what a plugin of each kind implements ---
from .api.ability import (
    Ability as Ability,
)
from .api.batch import (
    TrainBatch as TrainBatch,
    token_ranges as token_ranges,
)
from .api.callback import (
    Callback as Callback,
    RunControl as RunControl,
)
from .api.cluster import (
    ACTOR_THREADS as ACTOR_THREADS,
    Actor as Actor,
    ActorThread as ActorThread,
    Bundle as Bundle,
    CallFailed as CallFailed,
    Cluster as Cluster,
)
from .api.columns import (
    INDEXER_TOPK as INDEXER_TOPK,
    REPLAYS as REPLAYS,
    ROUTED_EXPERTS as ROUTED_EXPERTS,
    TEACHER_TOP_LOG_PROBS as TEACHER_TOP_LOG_PROBS,
    TOP_IDS as TOP_IDS,
    Column as Column,
    Input as Input,
    TopTokens as TopTokens,
    TrainsOn as TrainsOn,
)
from .api.config import (
    Config as Config,
    absolute_path as absolute_path,
    flag_name as flag_name,
)
from .api.diagnosis import (
    Diagnosis as Diagnosis,
)
from .api.dtypes import (
    DTYPE_NAMES as DTYPE_NAMES,
    DTYPE_OF_NAME as DTYPE_OF_NAME,
    torch_dtype as torch_dtype,
)
from .api.engine import (
    TOKEN_VARIABLE as TOKEN_VARIABLE,
    EngineLaunch as EngineLaunch,
    ServerCommand as ServerCommand,
)
from .api.errors import (
    CheckpointError as CheckpointError,
    ConfigError as ConfigError,
    DataError as DataError,
    DeltaError as DeltaError,
    EngineError as EngineError,
    LogProbGapError as LogProbGapError,
    MissingEngineError as MissingEngineError,
    MissingPackageError as MissingPackageError,
    ModelError as ModelError,
    NotFiniteError as NotFiniteError,
    PluginError as PluginError,
    RlcoreError as RlcoreError,
    RunError as RunError,
    StaleWeightsError as StaleWeightsError,
    UserError as UserError,
    WorkerError as WorkerError,
    did_you_mean as did_you_mean,
    faults_of as faults_of,
    first_line as first_line,
    returned as returned,
)
from .api.generation import (
    CheckingGenerator as CheckingGenerator,
    ClosableGenerator as ClosableGenerator,
    Completion as Completion,
    GenerationClient as GenerationClient,
    GenerationContext as GenerationContext,
    Generator as Generator,
    GroupGenerator as GroupGenerator,
    GroupScorer as GroupScorer,
    Request as Request,
)
from .api.hookspecs import (
    hookimpl as hookimpl,
)
from .api.lora import (
    ADAPTER_CONFIG as ADAPTER_CONFIG,
    ALL_LINEAR as ALL_LINEAR,
    AdapterSpec as AdapterSpec,
    LoraOptions as LoraOptions,
)
from .api.model_facts import (
    DeltaFacts as DeltaFacts,
    ExpertFacts as ExpertFacts,
    IndexFacts as IndexFacts,
    LatentFacts as LatentFacts,
    ModelFacts as ModelFacts,
)
from .api.model_hook import (
    ModelHook as ModelHook,
    ModelView as ModelView,
)
from .api.optimizer import (
    LrSchedule as LrSchedule,
    OptimizerOptions as OptimizerOptions,
    OptimizerSettings as OptimizerSettings,
)
from .api.overlay import (
    Overlay as Overlay,
    policy_of as policy_of,
    policy_tensor as policy_tensor,
)
from .api.packed import (
    PackedFlags as PackedFlags,
    PackedFloats as PackedFloats,
    PackedInts as PackedInts,
    TokenFloats as TokenFloats,
    TokenIds as TokenIds,
    TokenMask as TokenMask,
)
from .api.part import (
    ModelSpec as ModelSpec,
    Part as Part,
    RewardPart as RewardPart,
    part_name as part_name,
)
from .api.part_config import (
    AdvantageConfig as AdvantageConfig,
    BatchConfig as BatchConfig,
    ClusterConfig as ClusterConfig,
    CorrectionConfig as CorrectionConfig,
    DataConfig as DataConfig,
    EngineConfig as EngineConfig,
    FilterConfig as FilterConfig,
    GeneratorConfig as GeneratorConfig,
    GroupConfig as GroupConfig,
    LossConfig as LossConfig,
    Neighbor as Neighbor,
    PartConfig as PartConfig,
    PassingConfig as PassingConfig,
    ProducerConfig as ProducerConfig,
    RewardConfig as RewardConfig,
    TrainerConfig as TrainerConfig,
    ValueLossConfig as ValueLossConfig,
)
from .api.plugin_file import (
    PluginFile as PluginFile,
    import_plugin_file as import_plugin_file,
    install_plugin_files as install_plugin_files,
)
from .api.producer import (
    Producer as Producer,
    ProducerContext as ProducerContext,
    PromptEncoder as PromptEncoder,
    Rollout as Rollout,
)
from .api.records import (
    Algorithm as Algorithm,
    Component as Component,
    ForeignSetting as ForeignSetting,
    Kind as Kind,
    ModelFamily as ModelFamily,
    RewardAdapter as RewardAdapter,
    Source as Source,
)
from .api.reward import (
    ANSWER_KEY as ANSWER_KEY,
    AskingReward as AskingReward,
    CheckedReward as CheckedReward,
    Filter as Filter,
    GroupOrder as GroupOrder,
    Reward as Reward,
    Verdict as Verdict,
    accepted_answers as accepted_answers,
    answer_of as answer_of,
    answer_text as answer_text,
)
from .api.roles import (
    BASE as BASE,
    POLICY as POLICY,
    START as START,
    CriticOptions as CriticOptions,
    ModelKind as ModelKind,
    ReferenceOptions as ReferenceOptions,
    RoleOptions as RoleOptions,
    RoleSpec as RoleSpec,
    TeacherOptions as TeacherOptions,
)
from .api.run_config import (
    AsynchronyOptions as AsynchronyOptions,
    CheckpointOptions as CheckpointOptions,
    DataOptions as DataOptions,
    EvaluationOptions as EvaluationOptions,
    KlOptions as KlOptions,
    LossOptions as LossOptions,
    RewardOptions as RewardOptions,
    RunConfig as RunConfig,
    SamplingOptions as SamplingOptions,
    ServingOptions as ServingOptions,
)
from .api.server_config import (
    AsksChat as AsksChat,
    AsksScores as AsksScores,
    AsksServer as AsksServer,
    frozen_name as frozen_name,
)
from .api.sources import (
    Cursor as Cursor,
    DrawingSource as DrawingSource,
    FileBackedSource as FileBackedSource,
    PairSource as PairSource,
    Prompts as Prompts,
    PromptSource as PromptSource,
    ResponseSource as ResponseSource,
    content_hash as content_hash,
    content_share as content_share,
)
from .api.tokens import (
    CHECKED_AHEAD as CHECKED_AHEAD,
    Tokenizer as Tokenizer,
    load_tokenizer as load_tokenizer,
    template_text as template_text,
    text_ids as text_ids,
)
from .api.tracker import (
    RunInfo as RunInfo,
    Tracker as Tracker,
)
from .api.trainer import (
    CHECKSUMS_FILE as CHECKSUMS_FILE,
    AdaptedPolicy as AdaptedPolicy,
    AdaptingTrainer as AdaptingTrainer,
    ConversionReport as ConversionReport,
    ConvertingTrainer as ConvertingTrainer,
    DataRank as DataRank,
    FrozenPolicy as FrozenPolicy,
    LossResult as LossResult,
    Policy as Policy,
    PolicyLoss as PolicyLoss,
    ProgressCallback as ProgressCallback,
    Rendezvous as Rendezvous,
    SavedWeights as SavedWeights,
    Scorer as Scorer,
    Sleeper as Sleeper,
    SleepLevel as SleepLevel,
    Staged as Staged,
    Stateful as Stateful,
    StepResult as StepResult,
    TokenOutputs as TokenOutputs,
    TrainedPolicy as TrainedPolicy,
    TrainedValues as TrainedValues,
    Trainer as Trainer,
    TrainerRank as TrainerRank,
    ValueFunction as ValueFunction,
    ValueModel as ValueModel,
)
from .api.training import (
    AdvantageEstimator as AdvantageEstimator,
    AdvantageOutput as AdvantageOutput,
    BatchColumns as BatchColumns,
    Correction as Correction,
    CorrectionInputs as CorrectionInputs,
    Loss as Loss,
    LossInputs as LossInputs,
    LossOutput as LossOutput,
    TokenWeights as TokenWeights,
    ValueInputs as ValueInputs,
    ValueLoss as ValueLoss,
)
from .api.types import (
    BASELINE as BASELINE,
    RECORDED as RECORDED,
    GenerationStatus as GenerationStatus,
    Group as Group,
    Json as Json,
    Messages as Messages,
    Prompt as Prompt,
    RewardStatus as RewardStatus,
    Sample as Sample,
    Sampling as Sampling,
    Score as Score,
    Span as Span,
    parse_json as parse_json,
)

# --- tools for rewards, generators and commands ---
from .checkpoint.disk import (
    disk_sentence as disk_sentence,
    replace_file as replace_file,
)

# --- tools for trainers ---
from .checkpoint.folder import (
    COMPLETE_MARKER as COMPLETE_MARKER,
    write_atomically as write_atomically,
)
from .compose.models import (
    adopted as adopted,
    claimant as claimant,
    families as families,
    hub_config as hub_config,
    published_sizes as published_sizes,
    read_config as read_config,
)
from .compose.run_checks import (
    check_engine_placement as check_engine_placement,
    engine_count as engine_count,
)
from .compose.secrets import (
    without_secrets as without_secrets,
)
from .config.toml import (
    dump_settings as dump_settings,
    read_settings as read_settings,
)
from .data.chat import (
    SEAM as SEAM,
    Tools as Tools,
    TurnEnd as TurnEnd,
    chat_text as chat_text,
    is_special as is_special,
    turn_ends as turn_ends,
)

# --- tools for sources and producers ---
from .data.prompt_tokenizer import (
    PromptTokenizer as PromptTokenizer,
)
from .data.source_mix import (
    Portion as Portion,
    SourceMix as SourceMix,
)
from .data.urls import (
    is_url as is_url,
    open_file as open_file,
)
from .engines.classifiers import (
    CLASSIFIER_HEAD as CLASSIFIER_HEAD,
    REWARD_HEAD as REWARD_HEAD,
    classifier_of as classifier_of,
)

# --- tools for engines ---
from .engines.client import (
    EngineClient as EngineClient,
    PauseMode as PauseMode,
)
from .engines.client_http import (
    Http as Http,
    RefusedError as RefusedError,
    UnreachableError as UnreachableError,
)
from .engines.client_wire import (
    Capabilities as Capabilities,
)
from .engines.engine import (
    Engine as Engine,
)
from .engines.publish import (
    AskTrainer as AskTrainer,
    Publisher as Publisher,
    verify_weights as verify_weights,
)
from .engines.publish_file import (
    Fp8Weights as Fp8Weights,
    WeightForms as WeightForms,
    WeightsLocation as WeightsLocation,
    copy_side_files as copy_side_files,
)
from .engines.router import (
    Router as Router,
)
from .engines.stream import (
    Bucket as Bucket,
    Piece as Piece,
)
from .learning.maths import (
    MAX_LOG_RATIO as MAX_LOG_RATIO,
    KlKind as KlKind,
    Normalizer as Normalizer,
    importance_ratio as importance_ratio,
    indices_of as indices_of,
    kl as kl,
    log_ratio as log_ratio,
    masked_mean as masked_mean,
    segment_sum as segment_sum,
    token_weights as token_weights,
    where_live as where_live,
    whiten as whiten,
)
from .plugins.registry import (
    Registry as Registry,
)
from .rollout.batch import (
    even_shares as even_shares,
)
from .rollout.columns import (
    check_metadata as check_metadata,
)
from .rollout.context import (
    EngineContext as EngineContext,
    Engines as Engines,
    sampling_of as sampling_of,
)
from .rollout.draw import (
    Draw as Draw,
    GroupOutcome as GroupOutcome,
    Versions as Versions,
)
from .rollout.metrics import (
    generator_means as generator_means,
    part_means as part_means,
)
from .rollout.pipeline import (
    GroupPipeline as GroupPipeline,
)
from .tracking.run_files import (
    METRICS_FILE as METRICS_FILE,
    SAMPLES_FOLDER as SAMPLES_FOLDER,
    read_metrics as read_metrics,
)
from .tracking.trace import (
    TRACE_FILES as TRACE_FILES,
)
from .weights.checksums import (
    Checksum as Checksum,
    checksum as checksum,
)
from .weights.experts_config import (
    EXPERT_FIELDS as EXPERT_FIELDS,
    expert_count as expert_count,
)
from .weights.fp8_config import (
    FP8_SCALE_SUFFIX as FP8_SCALE_SUFFIX,
    Fp8Block as Fp8Block,
    fp8_block as fp8_block,
)
from .weights.weights_check import (
    check_weights as check_weights,
    decoder_root as decoder_root,
    expected_shapes as expected_shapes,
    name_in_files as name_in_files,
    shapes_in as shapes_in,
)

Run = _cli.Run
evaluate = _cli.evaluate
plan = _cli.plan
train = _cli.train

__all__: list[str]
__version__: str
