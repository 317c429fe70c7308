"""Whether every reward function of a job can be imported and takes its arguments, before the first prompt.

Called by `trimtab validate` and the coordinator (blocking; off the event loop). The user's code runs in a
process of its own, under a deadline.
"""

import os
import signal
import subprocess
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.errors import UserError
from trimtab.rewards.calls import RewardCall, encode, read_frame, setup_message
from trimtab.rewards.process import worker_command

if TYPE_CHECKING:
    from trimtab.api.rewards import RewardSpec

CHECK_TIMEOUT_S = 120.0


def check_rewards(
    specs: "Sequence[RewardSpec]",
    code_paths: Sequence[Path],
    base_dir: Path,
    *,
    path: str = "spec.rewards",
    built_in_only: bool = False,
    timeout_s: float = CHECK_TIMEOUT_S,
) -> None:
    """Raise `UserError` with one line per function that cannot be used.

    `code_paths` may be relative to `base_dir`, the folder of the job's file. `path` is the list's place in
    the job. `built_in_only` leaves out functions of the user's own, whose code is not here.
    """
    calls = RewardCall.from_specs(specs, path=path)
    if built_in_only:
        calls = [call for call in calls if ":" not in call.function]
    if not calls:
        return
    folders = [str(Path(base_dir) / folder) for folder in code_paths]
    request = encode(setup_message({"check": calls}, code_paths=folders, memory_limit_bytes=None))
    process = subprocess.Popen(  # noqa: S603 (our own interpreter)
        worker_command(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    names = ", ".join(call.function for call in calls)
    try:
        output, errors = process.communicate(request, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise UserError(
            f"{path}: importing {names} took longer than {timeout_s:g} s; "
            "move slow work out of the module's top level"
        ) from None
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    answer = read_frame(BytesIO(output))
    if answer is None:
        last_lines = "\n  ".join(errors.decode("utf-8", "replace").strip().splitlines()[-8:])
        raise UserError(
            f"{path}: the process ended with code {process.returncode} while it imported {names}:\n"
            f"  {last_lines}"
        )
    if answer["problems"]:
        raise UserError("\n".join(answer["problems"]))
