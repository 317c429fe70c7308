"""Peak memory of the actor's update for three lengths and two vocabularies.

    python benchmarks/actor_memory.py [--device cuda]

Each case is a process of its own: an update of one sequence, which makes the optimiser's moments, then an
update of four in one micro-batch, whose peak is taken: the kernel's own for the resident memory on a CPU,
torch's for what is allocated on a GPU. Prints bytes per token above the memory at rest, which must grow by
less than 10 % from one length to the next, and from the small vocabulary to the large one.

Nothing else is subtracted, so the lengths are such that tokens dominate: the gradient of the head (ids x
hidden size) is needed whatever the length.
"""

import argparse
import ctypes
import itertools
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

LENGTHS = (2048, 4096, 8192)
VOCABULARIES = (2_000, 16_000)
NUM_SEQUENCES = 4
LIMIT = 1.10


def measure(device_name: str, length: int, vocabulary: int) -> dict[str, float]:
    """One case, in this process."""
    import numpy as np
    import torch
    import torch.distributed as dist

    from trimtab.algorithms.losses import Denominators, GrpoLoss, GrpoLossConfig
    from trimtab.engines.training import FsdpTrainingEngine, ModelSource, TrainingSettings
    from trimtab.engines.training.host_memory import keep_freed_memory
    from trimtab.episodes import TrainBatch
    from trimtab.testing.tiny_model import make_tiny_model

    dist.init_process_group(
        "gloo" if device_name == "cpu" else "cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1
    )
    keep_freed_memory()  # as the actor does
    rng = np.random.default_rng(0)
    num_tokens = NUM_SEQUENCES * length
    mask = np.tile(np.arange(length) >= 32, NUM_SEQUENCES)
    batch = TrainBatch(
        token_ids=rng.integers(7, 1000, num_tokens).astype(np.int32),
        offsets=np.arange(0, num_tokens + 1, length).astype(np.int64),
        loss_mask=mask,
        advantages=np.where(mask, rng.normal(size=num_tokens), 0).astype(np.float32),
    )
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(
            folder,
            hidden=256,
            layers=4,
            characters=[chr(0x4E00 + i) for i in range(vocabulary)],
            max_length=max(LENGTHS),
        )
        source = ModelSource(str(model))
        settings = TrainingSettings(source, source, max_tokens_per_micro_batch=num_tokens)
        engine = FsdpTrainingEngine(settings, device=torch.device(device_name))
    counts = [Denominators(float(mask.sum()), float(NUM_SEQUENCES))]
    loss = GrpoLoss(GrpoLossConfig())
    engine.update(batch.select([0]), loss=loss, denominators=counts)
    rest = memory_at_rest(device_name)
    engine.update(batch, loss=loss, denominators=counts)
    peak = torch.cuda.max_memory_allocated() if device_name == "cuda" else resident_bytes("VmHWM")
    dist.destroy_process_group()
    return {"rest_bytes": rest, "peak_bytes": peak, "bytes_per_token": (peak - rest) / num_tokens}


def memory_at_rest(device_name: str) -> int:
    """Bytes in use now, with nothing kept for later; from here on the peak is counted."""
    import torch

    if device_name == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets VmHWM, the kernel's own peak
    return resident_bytes("VmRSS")


def resident_bytes(name: str) -> int:
    """A line of this process's /proc status."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"), re.M)
    assert found is not None
    return int(found[1]) * 1024


def main() -> int:
    """Run all cases and print the table; 1 where memory grows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--case", nargs=2, type=int, metavar=("LENGTH", "VOCABULARY"))
    args = parser.parse_args()
    if args.case:
        print(json.dumps(measure(args.device, *args.case)))
        return 0
    table: dict[tuple[int, int], float] = {}
    for vocabulary in VOCABULARIES:
        for length in LENGTHS:
            command = [sys.executable, str(Path(__file__)), "--device", args.device]
            command += ["--case", str(length), str(vocabulary)]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            result = json.loads(output.splitlines()[-1])
            table[vocabulary, length] = result["bytes_per_token"]
            print(
                f"vocabulary {vocabulary:6d}  length {length:5d}  peak {result['peak_bytes'] / 1e6:8.1f} MB"
                f"  above rest {result['bytes_per_token'] / 1e3:7.1f} kB per token"
            )
    lengths = [table[v, b] / table[v, a] for v in VOCABULARIES for a, b in itertools.pairwise(LENGTHS)]
    vocabularies = [table[VOCABULARIES[1], n] / table[VOCABULARIES[0], n] for n in LENGTHS]
    print(f"largest growth: length {max(lengths):.3f}, vocabulary {max(vocabularies):.3f} (limit {LIMIT})")
    return int(max(*lengths, *vocabularies) > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
