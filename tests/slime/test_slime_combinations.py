"""Translated flags that no run script has: rlcore accepts what comes of them."""

import json
import shutil
from pathlib import Path

import pytest

from rlcore import published_sizes
from rlcore.plugins.loader import load
from rlcore_cli.main import run

COMMON = (
    "--hf-checkpoint m --prompt-data d.jsonl --input-key prompt --label-key label --rollout-batch-size 32 "
    "--n-samples-per-prompt 8 --num-rollout 100 --rollout-max-response-len 1024 --max-tokens-per-gpu 4096"
)
COLOCATED = f"{COMMON} --colocate --rm-type math"
CASES = {
    "ppo": f"{COLOCATED} --advantage-estimator ppo --kl-coef 0.01 --value-clip 0.1 --gamma 0.99 --lambd 0.95 "
    "--num-critic-only-steps 2 --eps-clip-c 3 --normalize-advantages",
    "reinforce": f"{COLOCATED} --advantage-estimator reinforce_plus_plus --normalize-advantages --gamma 1.0 "
    "--use-kl-loss --kl-loss-coef 0.1 --use-unbiased-kl --ref-update-interval 10",
    "baseline": f"{COLOCATED} --rm-type dapo --reward-key score --normalize-advantages "
    "--advantage-estimator reinforce_plus_plus_baseline",
    "cispo": f"{COLOCATED} --rm-type random --advantage-estimator cispo --eps-clip 1.0 --eps-clip-high 4.0 "
    "--calculate-per-token-loss --disable-grpo-std-normalization",
    "raw": f"{COLOCATED} --rm-type gpqa --disable-rewards-normalization --use-rollout-logprobs --use-opsm",
    "partial": f"{COLOCATED} --use-tis --tis-clip 2 --use-opsm --partial-rollout "
    "--over-sampling-batch-size 64 --mask-offpolicy-in-partial-rollout",
    "async": f"train_async.py {COMMON} --rm-type f1 --rollout-num-gpus 4 --rollout-stop-token-ids 1 2 "
    "--rollout-stop END --router-policy cache_aware --offload-train",
    "distillation": f"{COLOCATED} --use-opd --opd-type megatron --opd-teacher-load m --opd-kl-coef 0.5",
    "remote": f"{COMMON} --colocate --rm-type remote_rm --rm-url http://127.0.0.1:1/x",
    "freeze": f"{COLOCATED} --freeze-params-name-list embed --balance-by-flops --skip-eval-before-train "
    "--use-pytorch-profiler --profile-step-start 3 --profile-step-end 5 --check-weight-update-equal",
    "evaluations": f"{COLOCATED} --eval-interval 10 --eval-prompt-data a d.jsonl b d.jsonl --eval-top-k 20 "
    "--n-samples-per-eval-prompt 4 --eval-temperature 0.6 --eval-top-p 0.9 --eval-max-response-len 2048 "
    '--apply-chat-template --apply-chat-template-kwargs {"enable_thinking":false}',
    "rollouts": f"{COLOCATED} --debug-rollout-only --save-debug-rollout-data x",
    "sft": f"{COMMON} --input-key messages --loss-type sft_loss --debug-train-only",
    "sgd": f"{COLOCATED} --use-tensorboard --tb-project-name x --optimizer sgd --sgd-momentum 0.9",
    "prefill": f"{COLOCATED} --prefill-num-servers 2 --rollout-num-gpus-per-engine 2 "
    "--sglang-disaggregation-transfer-backend mooncake",
    "external": f"{COMMON} --rm-type math --rollout-external-engine-addrs 127.0.0.1:3000",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and a file of prompts."""
    path = tmp_path_factory.mktemp("inputs")
    (path / "m").mkdir()
    shutil.copy(published_sizes(load().registry)["qwen3-4b"], path / "m" / "config.json")
    chat = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]
    row = {"prompt": "1", "label": "2", "messages": chat}
    (path / "d.jsonl").write_text(json.dumps(row) + "\n")
    return path


@pytest.mark.grid
@pytest.mark.parametrize("case", CASES)
def test_what_is_translated_is_accepted(
    case: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert run(["import", "slime", "-o", "run.toml", *CASES[case].split()]) == 0
    code = run(["train", "--config", "run.toml", "--dry-run"])
    assert code == 0, capsys.readouterr().err
