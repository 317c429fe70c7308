"""Taking a model's tensors leaves nothing behind for whoever takes them."""

import torch
from torch import nn

from trimtab.engines.training.export import whole_tensors


def test_gradients_stay_on_while_tensors_of_two_models_are_taken_in_turn() -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    for pair in zip(whole_tensors(first, torch.bfloat16), whole_tensors(second, torch.float32), strict=True):
        assert torch.is_grad_enabled()
        assert not any(tensor.requires_grad for _, tensor in pair)
    assert torch.is_grad_enabled()
