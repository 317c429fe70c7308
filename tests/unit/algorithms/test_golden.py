"""The golden vectors (tests/golden/README.md), turned into flat arrays, gradients included."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trimtab.algorithms.advantages import group_advantages, spread_to_tokens
from trimtab.algorithms.aggregation import aggregate
from trimtab.algorithms.denominators import Denominators
from trimtab.algorithms.kl import (
    AdaptiveKLController,
    FixedKLController,
    kl_in_reward,
    kl_penalty,
)
from trimtab.algorithms.log_probs import token_entropy, token_log_probs, token_log_probs_and_entropy
from trimtab.algorithms.losses import clipped_policy_loss
from trimtab.algorithms.masked import (
    masked_mean,
    masked_sum,
    masked_var,
    masked_whiten,
    mean_by_sequence,
    sum_by_sequence,
)

GOLDEN = Path(__file__).parents[2] / "golden"


def golden(operation: str) -> Any:
    cases = json.loads((GOLDEN / f"{operation}.json").read_text())["cases"]
    return pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in cases])


def check(case: dict[str, Any], name: str, got: Any, where: Any = None) -> None:
    want = np.asarray(case["expected"][name], np.float64)
    got = np.asarray(got.detach() if isinstance(got, torch.Tensor) else got, np.float64)
    assert got.shape == want.shape
    close = np.abs(got - want) <= case["tolerance"] * np.maximum(1, np.abs(want))
    assert np.all(close if where is None else close | ~where), (name, got, want)


@dataclass
class Flat:
    """Rows (B, T) laid out one after the other, each cut after its last valid token."""

    mask_bt: np.ndarray
    keep: np.ndarray
    mask: np.ndarray
    offsets: np.ndarray
    sequence_ids: np.ndarray

    @classmethod
    def of(cls, mask: Any) -> "Flat":
        mask_bt = np.asarray(mask, bool)
        reversed_valid = np.cumsum(mask_bt[:, ::-1], axis=1)[:, ::-1]
        keep = reversed_valid > 0
        lengths = keep.sum(1)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return cls(mask_bt, keep, mask_bt[keep], offsets, np.repeat(np.arange(len(lengths)), lengths))

    def numpy(self, values: Any) -> np.ndarray:
        return np.asarray(values, np.float64)[self.keep]

    def torch(self, values: Any, *, grad: bool = False) -> torch.Tensor:
        return torch.tensor(self.numpy(values), dtype=torch.float64, requires_grad=grad)

    def back(self, values: Any) -> np.ndarray:
        """To (B, T), 0 where padding was."""
        out = np.zeros(self.keep.shape)
        out[self.keep] = values
        return out

    @property
    def num_sequences(self) -> int:
        return len(self.offsets) - 1


def aggregator(flat: Flat, params: dict[str, Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    """The references' defaults: local counts; dp_size multiplies, because they average over ranks."""
    mode, scale = params["loss_agg_mode"], params["loss_scale_factor"] or flat.mask_bt.shape[1]
    num_tokens = params["batch_num_tokens"] or flat.mask.sum()
    if mode == "token-sum":  # not one of ours: it is token-mean over one token
        mode, num_tokens = "token-mean", 1
    num_sequences = params["global_batch_size"] or flat.mask_bt.any(1).sum()
    denominators = Denominators(float(num_tokens), float(num_sequences), float(scale))
    mask, sequence_ids = torch.tensor(flat.mask), torch.tensor(flat.sequence_ids)

    def apply(values: torch.Tensor) -> torch.Tensor:
        total = aggregate(values, mask, sequence_ids, flat.num_sequences, mode, denominators)
        return total * (params["dp_size"] or 1)

    return apply


@golden("grpo_advantage")
def test_group_advantages_match_the_reference(case: dict[str, Any]) -> None:
    inputs, params = case["inputs"], case["params"]
    flat = Flat.of(inputs["response_mask"])
    # Scores count on masked positions too in the reference, so they are summed before anything is cut.
    scores = np.asarray(inputs["token_level_rewards"], np.float64).sum(1)
    advantages = group_advantages(
        scores, inputs["index"], normalize_by_std=params["norm_adv_by_std"], epsilon=params["epsilon"]
    )
    check(case, "advantages", flat.back(spread_to_tokens(advantages, flat.mask, flat.offsets)))


@golden("policy_loss_vanilla")
def test_clipped_policy_loss_matches_the_reference(case: dict[str, Any]) -> None:
    inputs, params = case["inputs"], case["params"]
    flat = Flat.of(inputs["response_mask"])
    log_probs = flat.torch(inputs["log_prob"], grad=True)
    result = clipped_policy_loss(
        log_probs,
        flat.torch(inputs["old_log_prob"]),
        flat.torch(inputs["advantages"]),
        clip_low=params["clip_ratio_low"],
        clip_high=params["clip_ratio_high"],
        dual_clip=params["clip_ratio_c"],
    )
    weights = inputs["rollout_is_weights"]
    per_token = result.loss if weights is None else result.loss * flat.torch(weights)
    loss = aggregator(flat, params)(per_token)
    loss.backward()
    check(case, "loss", loss)
    check(case, "grad_log_prob", flat.back(log_probs.grad))
    check(case, "ppo_kl", masked_mean(result.approximate_kl.numpy(), flat.mask))
    check(case, "pg_clipfrac", masked_mean(result.clipped.numpy(), flat.mask))
    check(case, "pg_clipfrac_lower", masked_mean(result.clipped_lower.numpy(), flat.mask))


@golden("agg_loss")
def test_aggregate_matches_the_reference(case: dict[str, Any]) -> None:
    flat = Flat.of(case["inputs"]["loss_mask"])
    values = flat.torch(case["inputs"]["loss_mat"], grad=True)
    loss = aggregator(flat, case["params"])(values)
    loss.backward()
    check(case, "loss", loss)
    check(case, "grad_loss_mat", flat.back(values.grad))


@golden("kl_penalty")
def test_kl_penalty_matches_the_reference_in_torch_and_numpy(case: dict[str, Any]) -> None:
    estimator = case["params"]["kl_penalty"]
    log_probs = torch.tensor(case["inputs"]["logprob"], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor(case["inputs"]["ref_logprob"], dtype=torch.float64)
    kl = kl_penalty(log_probs, reference, estimator)
    kl.sum().backward()
    check(case, "kl", kl)
    check(case, "grad_logprob", log_probs.grad)
    check(case, "kl", kl_penalty(log_probs.detach().numpy(), reference.numpy(), estimator))


@golden("kl_in_reward")
def test_kl_in_reward_matches_the_reference(case: dict[str, Any]) -> None:
    inputs, params = case["inputs"], case["params"]
    flat = Flat.of(inputs["response_mask"])
    controller = controller_of(params["controller"])
    used = controller.coefficient
    result = kl_in_reward(
        flat.numpy(inputs["token_level_scores"]),
        flat.numpy(inputs["old_log_probs"]),
        flat.numpy(inputs["ref_log_prob"]),
        flat.mask,
        flat.offsets,
        estimator=params["kl_penalty"],
        coefficient=used,
    )
    controller.update(result.current_kl, flat.num_sequences)
    check(case, "token_level_rewards", flat.back(result.token_rewards))
    check(case, "current_kl", result.current_kl)
    check(case, "kl_coef_used", used)
    check(case, "kl_coef_after", controller.coefficient)


def controller_of(params: dict[str, Any]) -> FixedKLController | AdaptiveKLController:
    if params["type"] == "fixed":
        return FixedKLController(params["kl_coef"])
    return AdaptiveKLController(params["kl_coef"], target=params["target_kl"], horizon=params["horizon"])


@golden("adaptive_kl_controller")
def test_adaptive_controller_matches_the_reference_except_below_zero(case: dict[str, Any]) -> None:
    params = case["params"]
    controller = AdaptiveKLController(
        params["init_kl_coef"], target=params["target_kl"], horizon=params["horizon"]
    )
    values = []
    for kl, count in zip(case["inputs"]["current_kl"], case["inputs"]["n_steps"], strict=True):
        controller.update(kl, count)
        values.append(controller.coefficient)
    assert min(case["expected"]["values"]) >= 0  # the vectors stay where the reference's and ours agree
    check(case, "values", values)


@golden("fixed_kl_controller")
def test_fixed_controller_matches_the_reference(case: dict[str, Any]) -> None:
    controller = FixedKLController(case["params"]["kl_coef"])
    values = []
    for kl, count in zip(case["inputs"]["current_kl"], case["inputs"]["n_steps"], strict=True):
        controller.update(kl, count)
        values.append(controller.coefficient)
    check(case, "values", values)


@golden("entropy_from_logits")
def test_entropy_matches_the_reference(case: dict[str, Any]) -> None:
    logits, rows = logits_of(case)
    entropy = token_entropy(rows, case["params"]["temperature"])
    entropy.sum().backward()
    check(case, "entropy", entropy.view(logits.shape[:2]))
    check(case, "grad_logits", logits.grad)


@golden("logprobs_from_logits")
def test_log_probs_match_the_reference(case: dict[str, Any]) -> None:
    logits, rows = logits_of(case)
    labels = torch.tensor(case["inputs"]["labels"]).flatten()
    temperature = case["params"]["temperature"]
    log_probs = token_log_probs(rows, labels, temperature)
    log_probs.sum().backward()
    check(case, "log_probs", log_probs.view(logits.shape[:2]))
    check(case, "grad_logits", logits.grad)
    both, entropy = token_log_probs_and_entropy(rows, labels, temperature)
    assert torch.equal(both, log_probs)
    assert torch.equal(entropy, token_entropy(rows, temperature))


def logits_of(case: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    logits = torch.tensor(case["inputs"]["logits"], dtype=torch.float64, requires_grad=True)
    return logits, logits.flatten(0, 1)


@golden("masked_mean")
def test_masked_mean_and_sum_match_the_reference(case: dict[str, Any]) -> None:
    flat = Flat.of(case["inputs"]["mask"])
    values = flat.numpy(case["inputs"]["values"])
    if case["params"]["axis"] is None:
        check(case, "mean", masked_mean(values, flat.mask))
        check(case, "sum", masked_sum(values, flat.mask))
    else:
        check(case, "mean", mean_by_sequence(values, flat.mask, flat.offsets))
        check(case, "sum", sum_by_sequence(np.where(flat.mask, values, 0.0), flat.offsets))


@golden("masked_var")
def test_masked_var_matches_the_reference(case: dict[str, Any]) -> None:
    flat = Flat.of(case["inputs"]["mask"])
    values = flat.numpy(case["inputs"]["values"])
    check(case, "var", masked_var(values, flat.mask, unbiased=case["params"]["unbiased"]))


@golden("masked_whiten")
def test_masked_whiten_matches_the_reference_where_the_mask_is_one(case: dict[str, Any]) -> None:
    flat = Flat.of(case["inputs"]["mask"])
    whitened = masked_whiten(
        flat.numpy(case["inputs"]["values"]), flat.mask, shift_mean=case["params"]["shift_mean"]
    )
    check(case, "whitened", flat.back(whitened), where=flat.mask_bt)
