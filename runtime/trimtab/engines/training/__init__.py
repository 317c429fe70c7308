"""Training engines. `TrainingEngine` is what the actor role needs of one; `FsdpTrainingEngine` is one."""

from trimtab.engines.training.engine import FsdpTrainingEngine, LogProbs, ModelName
from trimtab.engines.training.export import TensorInfo
from trimtab.engines.training.protocol import TrainingEngine
from trimtab.engines.training.settings import (
    ModelSource,
    OptimizerSettings,
    Precision,
    Schedule,
    TrainingSettings,
)

__all__ = [
    "FsdpTrainingEngine",
    "LogProbs",
    "ModelName",
    "ModelSource",
    "OptimizerSettings",
    "Precision",
    "Schedule",
    "TensorInfo",
    "TrainingEngine",
    "TrainingSettings",
]
