"""The settings of the tracker."""

from pydantic import Field

from rlcore import Config


class MlflowConfig(Config):
    """Which run of MLflow it is. User and password are never settings: MLflow reads its environment."""

    uri: str = Field(
        "",
        description="tracking server, or file:///FOLDER; empty: as MLFLOW_TRACKING_URI says, else RUN/mlflow",
    )
    experiment: str = Field("rlcore", min_length=1, description="experiment of the run")
    run_name: str = Field("", description="name of the run; empty: that of its folder")
    samples: int = Field(
        16, ge=0, description="answers of each evaluated set, and samples of each saved rollout, as a table"
    )
