"""Settings of a learner, for tests of trainers and of what is trained by."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from rlcore.api.run_config import RunConfig
from rlcore.learning.settings import LearnerSettings


def learner_settings(**settings: Any) -> LearnerSettings:
    """Those of the run by their names, such as `minibatches`, and fields of `LearnerSettings`."""
    own = {field.name for field in fields(LearnerSettings)}
    of_learner = {"dtype": "fp32", "folder": ""} | {n: x for n, x in settings.items() if n in own}
    run = RunConfig.of(**{name: value for name, value in settings.items() if name not in own})
    return LearnerSettings(run=run, **of_learner)
