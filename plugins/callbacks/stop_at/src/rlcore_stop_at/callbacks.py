"""The callbacks `stop_at`, `reduce_lr` and `adaptive_kl`."""

from collections.abc import Mapping

from rlcore import Callback, ConfigError, Json, RunControl, did_you_mean
from rlcore_stop_at.config import AdaptiveKlConfig, MetricConfig, ReduceLrConfig, StopAtConfig

_EVALUATION = "eval/"


class _MetricCallback(Callback):
    """Sees each value of one metric; `waited` counts the newest ones that are no better than the best."""

    flag: str

    def __init__(self, config: MetricConfig) -> None:
        self._metric, self._min_delta = config.metric, config.min_delta
        self._sign = 1.0 if config.goal == "max" else -1.0
        self._is_known = False
        self.best: float | None = None
        self.waited = 0

    def after_step(self, step: int, metrics: Mapping[str, Json]) -> RunControl | None:
        """Also checks the name of the metric, in the first step that trains."""
        return self._found(metrics, is_here=not self._is_evaluation and metrics.get("train/updates", 0) > 0)

    def after_evaluation(self, step: int, metrics: Mapping[str, Json]) -> RunControl | None:
        """Also checks the name of the metric, in the first evaluation."""
        return self._found(metrics, is_here=self._is_evaluation)

    def state(self) -> Json:
        """The best value, and how long ago it was."""
        return {"best": self.best, "waited": self.waited, "is_known": self._is_known}

    def load(self, state: Json) -> None:
        """Go on where `state` was taken."""
        self.best, self.waited, self._is_known = state["best"], state["waited"], state["is_known"]

    def _found(self, metrics: Mapping[str, Json], *, is_here: bool) -> RunControl | None:
        value = metrics.get(self._metric)
        if value is None:
            if is_here and not self._is_known:
                raise ConfigError(
                    f"{self.flag}: found {self._metric!r}, expected one of {', '.join(sorted(metrics))}."
                    f"{did_you_mean(self._metric, metrics)}"
                )
            return None
        self._is_known = True
        is_better = self.best is None or self._sign * (value - self.best) > self._min_delta
        self.best, self.waited = (value, 0) if is_better else (self.best, self.waited + 1)
        return self._judge(value)

    @property
    def _is_evaluation(self) -> bool:
        return self._metric.startswith(_EVALUATION)

    def _judge(self, value: float) -> RunControl | None:
        """What a new value asks for."""
        raise NotImplementedError


class StopAt(_MetricCallback):
    """Ends the run."""

    flag = "--callback.stop-at.metric"

    def __init__(self, config: StopAtConfig) -> None:
        super().__init__(config)
        self._config = config

    def _judge(self, value: float) -> RunControl | None:
        config, said = self._config, f"{self._metric} is {value:g}"
        if config.above is not None and value >= config.above:
            return RunControl(stop=f"{said}, at least {config.above:g}")
        if config.below is not None and value <= config.below:
            return RunControl(stop=f"{said}, at most {config.below:g}")
        if config.patience and self.waited >= config.patience:
            return RunControl(stop=f"{said}, after {self.waited} values no better than {self.best:g}")
        return None


class ReduceLr(_MetricCallback):
    """Lowers the learning rate."""

    flag = "--callback.reduce-lr.metric"

    def __init__(self, config: ReduceLrConfig) -> None:
        super().__init__(config)
        self._config = config
        self._scale = 1.0

    def state(self) -> Json:
        """The state of every callback here, and the present scale."""
        return {**super().state(), "scale": self._scale}

    def load(self, state: Json) -> None:
        """Go on where `state` was taken."""
        super().load(state)
        self._scale = state["scale"]

    def _judge(self, value: float) -> RunControl | None:
        if self.waited < self._config.patience:
            return None
        self.waited = 0
        self._scale = max(self._config.min_scale, self._scale * self._config.factor)
        return RunControl(lr_scale=self._scale)


class AdaptiveKl(Callback):
    """Steers the KL to the reference to a target, by its coefficient (https://arxiv.org/abs/1909.08593, 2.2).

    After each step the coefficient is multiplied by 1 + gain · clip(KL / target - 1, -0.2, 0.2).
    """

    def __init__(self, config: AdaptiveKlConfig) -> None:
        self._config = config
        self._scale = 1.0

    def after_step(self, step: int, metrics: Mapping[str, Json]) -> RunControl | None:
        """A step that trained nothing says nothing of the KL."""
        kl = metrics.get("train/kl_reference")
        if kl is None:
            return None
        error = min(0.2, max(-0.2, kl / self._config.target - 1))
        self._scale *= 1 + self._config.gain * error
        return RunControl(kl_scale=self._scale)

    def state(self) -> Json:
        """The present scale."""
        return self._scale

    def load(self, state: Json) -> None:
        """Go on where `state` was taken."""
        self._scale = state
