"""How exceptions are named on the wire, judged by the real ones."""

import pytest
import torch

from trimtab.comm.control import error_kind
from trimtab.errors import DeadlineError, UserError

FAR_TOO_MUCH = 1 << 60


def test_torch_without_memory_on_the_cpu_is_named_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(FAR_TOO_MUCH, dtype=torch.uint8)
    assert error_kind(caught.value) == "oom"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "oom"),
        (MemoryError(), "oom"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "internal"),
        (ValueError("DefaultCPUAllocator: said by somebody else"), "internal"),
        (TimeoutError(), "timeout"),
        (DeadlineError("late"), "timeout"),
        (UserError("a field"), "user"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_error_kind(error: BaseException, kind: str) -> None:
    assert error_kind(error) == kind
