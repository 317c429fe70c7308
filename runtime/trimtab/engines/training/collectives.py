"""Collectives on values that are no tensors: as JSON, because torch's own object collectives unpickle.

Called by the training engine, on every rank of the default process group in the same order.
"""

import json
from typing import Any

import torch
import torch.distributed as dist


def gather_json(value: Any, *, device: torch.device) -> list[Any]:
    """Every rank's value, in rank order, on every rank. NaN and infinities survive."""
    data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8).to(device)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([data.numel()], device=device))
    longest = max(int(size) for size in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8, device=device)
    padded[: data.numel()] = data
    buffers = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(buffers, padded)
    return [
        json.loads(bytes(buffer[: int(size)].cpu().numpy()))
        for buffer, size in zip(buffers, sizes, strict=True)
    ]
