"""vLLM's entry point `vllm.general_plugins`: runs in every process of an engine that vLLM starts.

It registers our weight-transfer engine with vLLM's factory, and, in the processes of an engine that a
rollout worker owns, sees to it that they end with the worker and leave word of why they died. Cheap and
without effect in any other vLLM of the same installation. Safe to run more than once.
"""

import json
import logging
import os
import select
import signal
import threading
from pathlib import Path

BACKEND = "trimtab"
"""Our name with vLLM's WeightTransferEngineFactory."""
OWNER_PID_VARIABLE = "TRIMTAB_ENGINE_OWNER_PID"
"""Process that the engine belongs to; set by `VllmEngine` around the engine's start."""
FAULT_FILE_VARIABLE = "TRIMTAB_ENGINE_FAULT_FILE"
"""File for the kind of the first error that an engine process logs with a traceback."""
EXTENSION = "trimtab.comm.weights.vllm_engine.WorkerExtension"

_done = threading.Event()


def register() -> None:
    """Called by vLLM, in the frontend, the engine core and every worker process."""
    if _done.is_set():
        return
    _done.set()
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    # Lazy: our engine's module, and with it vLLM's loader, is imported only where it is used.
    WeightTransferEngineFactory.register_engine(
        BACKEND, "trimtab.comm.weights.vllm_engine", "TrimtabWeightTransferEngine"
    )
    owner = os.environ.get(OWNER_PID_VARIABLE)
    if owner is not None and int(owner) != os.getpid():
        _end_with(int(owner))
        fault_file = os.environ.get(FAULT_FILE_VARIABLE)
        if fault_file:
            logging.getLogger("vllm").addHandler(_FaultRecorder(Path(fault_file)))


def _end_with(owner: int) -> None:
    """Kill this process when the owner is gone: nobody else would, and it holds memory and cores.

    A descriptor of the process, unlike a parent-death signal, does not depend on which thread started us.
    """
    try:
        descriptor = os.pidfd_open(owner)
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGKILL)
        return

    def watch() -> None:
        select.select([descriptor], [], [])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="trimtab-owner-watch", daemon=True).start()


class _FaultRecorder(logging.Handler):
    """Notes the type of the first exception that vLLM logs: it crosses to the owner by text alone."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.ERROR)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        """Write the fault file, once."""
        error = record.exc_info[1] if record.exc_info else None
        if error is None or self._path.exists():
            return
        fault = {"kind": _kind(error), "error": f"{type(error).__name__}: {error}".splitlines()[0]}
        self._path.write_text(json.dumps(fault), encoding="utf-8")


def _kind(error: BaseException) -> str:
    from trimtab.comm.control import error_kind

    if error_kind(error) == "oom":
        return "oom"
    return "value" if isinstance(error, ValueError) else "internal"
