"""A receiver as a process of its own, for test_weight_groups.py: a JSON command a line, an answer a line."""

import json
import os
import signal
import sys
import time

import torch

from trimtab.comm.weights import TransferError, WeightGroup, build_manifest, receive
from trimtab.errors import DeadlineError


def _loader(command, got):
    def load(tensors):
        if command.get("fail"):
            raise RuntimeError("no such parameter")
        if command.get("die_at_tensor") in dict(tensors):
            os.kill(os.getpid(), signal.Signals[command["signal"]])
        got.update({name: tensor.float().mean().item() for name, tensor in tensors})

    return load


def main():
    group = None
    port = int(sys.argv[1])
    for line in sys.stdin:
        command = json.loads(line)
        started = time.monotonic()
        got = {}
        error = None
        try:
            if command["verb"] == "join":
                command.pop("verb")
                group = WeightGroup.join(backend="gloo", store_host="127.0.0.1", store_port=port, **command)
            else:
                manifest = build_manifest(
                    [(name, tuple(shape)) for name, shape in command["shapes"]],
                    dtype=torch.bfloat16,
                    bucket_bytes=command["bucket_bytes"],
                )
                receive(
                    group, command["version"], manifest, _loader(command, got), timeout_s=command["timeout_s"]
                )
        except (DeadlineError, TransferError) as failure:
            error = [type(failure).__name__, str(failure)]
        print(json.dumps({"error": error, "got": got, "seconds": time.monotonic() - started}), flush=True)


if __name__ == "__main__":
    main()
