"""Settings of the loss, read from a job."""

from trimtab.algorithms.losses import GrpoLossConfig
from trimtab.api.algorithm import GRPOSpec


def test_config_from_spec_reads_every_field() -> None:
    spec = GRPOSpec.model_validate(
        {
            "clip": {"low": 0.1, "high": 0.28, "dual": 4.0},
            "kl": {"coefficient": 0.02, "estimator": "k1", "placement": "reward"},
            "entropyCoefficient": 0.003,
            "lossAggregation": "seq-mean-token-sum-norm",
        }
    )
    assert GrpoLossConfig.from_spec(spec, max_response_tokens=512) == GrpoLossConfig(
        clip_low=0.1,
        clip_high=0.28,
        dual_clip=4.0,
        aggregation="seq-mean-token-sum-norm",
        scale_factor=512.0,
        kl_coefficient=0.02,
        kl_estimator="k1",
        kl_placement="reward",
        entropy_coefficient=0.003,
    )
