"""The weight plane: moving a policy's weights from the actor to every inference engine.

`WeightGroup` (group.py) is one membership of actor rank and inference workers, `WeightSender` and
`receive` (transfer.py) move one publication over it, `manifest.py` says what a publication contains.
Needs torch and nothing of vLLM: the two vllm_*.py modules are for the engine's processes alone and are
imported there, through the entry point group `vllm.general_plugins`.
"""

from trimtab.comm.weights.group import WeightGroup
from trimtab.comm.weights.manifest import build_manifest, total_bytes
from trimtab.comm.weights.transfer import Received, TransferError, WeightSender, receive

__all__ = [
    "Received",
    "TransferError",
    "WeightGroup",
    "WeightSender",
    "build_manifest",
    "receive",
    "total_bytes",
]
