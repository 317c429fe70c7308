"""AdamW with its schedule, clipping and the guard against gradients that are not finite.

Called by the engine once per mini-batch, on every rank alike: each decision rests on numbers that
are the same on all ranks.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trimtab.engines.training.settings import OptimizerSettings


@dataclass(frozen=True)
class StepResult:
    """What one optimiser step did."""

    gradient_norm: float
    """Over all parameters, before clipping."""
    learning_rate: float
    applied: bool
    """False where the norm was not finite: parameters and moments are as before."""


class PolicyOptimizer:
    """Owns torch's AdamW and counts the optimiser steps that were tried."""

    def __init__(self, model: nn.Module, settings: OptimizerSettings, *, total_steps: int | None) -> None:
        self._settings = settings
        self._total_steps = total_steps
        self._parameters = dict(model.named_parameters())
        self._adamw = torch.optim.AdamW(
            self._parameters.values(),
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self.num_steps = 0
        """Tried so far, skipped ones included: the schedule's clock."""

    def step(self) -> StepResult:
        """Clip and apply the accumulated gradients, then drop them."""
        norm = self._gradient_norm()
        learning_rate = self._settings.learning_rate * self._settings.schedule.factor(
            self.num_steps, self._total_steps
        )
        applied = bool(torch.isfinite(norm))
        if applied:
            if self._settings.gradient_clip is not None:
                factor = (self._settings.gradient_clip / (norm + 1e-6)).clamp(max=1.0)
                gradients = [_local(p.grad) for p in self._parameters.values() if p.grad is not None]
                torch._foreach_mul_(gradients, factor)
            for group in self._adamw.param_groups:
                group["lr"] = learning_rate
            self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)
        self.num_steps += 1
        return StepResult(float(norm), learning_rate, applied)

    def state_tensors(self) -> dict[str, Tensor]:
        """Moments and step counts by parameter, to be saved or loaded in place; made where there are none."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in self._parameters.items():
            state = self._adamw.state[parameter]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=_local(parameter).device)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
            tensors |= {f"{key}.{name}": value for key, value in state.items()}
        return tensors

    def _gradient_norm(self) -> Tensor:
        gradients = [p.grad for p in self._parameters.values() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
