"""A reward worker: the process in which reward functions run, one response at a time.

Started by `trimtab.rewards.process` as `python -m trimtab.rewards.worker`; `trimtab.rewards.calls`
describes the frames. Built to be killed: it holds nothing that anybody needs. Its standard output
belongs to the protocol, so what the user's code prints goes to standard error. One thread.
"""

import asyncio
import ctypes
import inspect
import math
import os
import resource
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import ValidationError

from trimtab.errors import UserError
from trimtab.rewards.calls import RewardCall, encode, read_frame
from trimtab.rewards.functions import BUILTINS, RewardFunction
from trimtab.user_code import describe_exception, import_object

PR_SET_PDEATHSIG = 1


def main(parent_pid: int) -> int:
    """Serve until the parent closes our input, or dies."""
    requests, replies = _take_over_standard_streams()
    _die_with_parent(parent_pid)
    setup = read_frame(requests)
    if setup is None:
        return 0
    _limit_memory(setup["memory_limit_bytes"])
    lists, problems = _load(setup["lists"], [Path(path) for path in setup["code_paths"]])
    _send(replies, {"problems": problems})
    if problems:
        return 0
    loop = asyncio.new_event_loop()
    while (request := read_frame(requests)) is not None:
        inputs = {name: request[name] for name in ("prompt", "response", "fields")}
        for function in lists[request["list"]]:
            answer = _call(function, inputs, loop)
            _send(replies, answer)
            if answer.get("leaving"):
                return 0
            if "error" in answer:
                break
    return 0


def build_function(call: RewardCall, code_paths: Sequence[Path]) -> RewardFunction:
    """The function of a call, its arguments checked. Raises `UserError`."""
    if ":" in call.function:
        function = import_object(call.function, code_paths, field=f"{call.path}.function")
        if not callable(function):
            raise UserError(
                f"{call.path}.function: {call.function!r} is a {type(function).__name__}, not a function"
            )
        try:
            inspect.signature(function).bind(prompt="", response="", fields={}, **call.arguments)
        except TypeError as error:
            raise UserError(
                f"{call.path}.arguments: {call.function} cannot be called with prompt, response, fields and "
                f"{dict(call.arguments)}: {error}"
            ) from None
        return partial(function, **call.arguments)
    factory = BUILTINS.get(call.function)
    if factory is None:
        near = get_close_matches(call.function, BUILTINS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"built in are {', '.join(BUILTINS)}"
        raise UserError(
            f"{call.path}.function: there is no reward function {call.function!r}; {hint} "
            "(a function of your own is written module:name)"
        )
    try:
        return factory(**call.arguments)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, item['loc'])) or 'arguments'}: {item['msg']}" for item in error.errors()
        )
        raise UserError(f"{call.path}.arguments: {call.function}: {problems}") from None
    except UserError as error:  # a library that is not installed
        raise UserError(f"{call.path}.function: {error}") from None
    except ValueError as error:
        raise UserError(f"{call.path}.arguments: {call.function}: {error}") from None


def _load(
    lists: Mapping[str, Sequence[Mapping[str, Any]]], code_paths: Sequence[Path]
) -> tuple[dict[str, list[RewardFunction]], list[str]]:
    functions: dict[str, list[RewardFunction]] = {}
    problems: list[str] = []
    for name, calls in lists.items():
        functions[name] = []
        for call in calls:
            try:
                functions[name].append(build_function(RewardCall(**call), code_paths))
            except UserError as error:
                problems.append(str(error))
    return functions, list(dict.fromkeys(problems))  # training and validation may share a list


def _call(
    function: RewardFunction, inputs: Mapping[str, Any], loop: asyncio.AbstractEventLoop
) -> dict[str, Any]:
    try:
        result = function(**inputs)
        if inspect.isawaitable(result):
            result = loop.run_until_complete(_awaited(result))
    except MemoryError:
        # What it holds may be held for good: leave, the parent starts a fresh worker.
        limit_mib = resource.getrlimit(resource.RLIMIT_DATA)[0] >> 20
        error_text = f"MemoryError: more memory than a reward worker may have ({limit_mib} MiB)"
        return {"error": error_text, "kind": "died", "leaving": True}
    except BaseException as error:  # noqa: BLE001 (a user's function may raise anything, SystemExit included)
        traceback.print_exc(file=sys.stderr)
        return {"error": describe_exception(error), "kind": "raised"}
    return _checked(result)


async def _awaited(result: Any) -> Any:
    return await result


def _checked(result: Any) -> dict[str, Any]:
    named = result if isinstance(result, Mapping) else {"": result}
    values: dict[str, float] = {}
    for name, value in named.items():
        number = _number(value)
        if number is None:
            what = f"{value!r:.80} ({type(value).__name__})"
            return {
                "error": f"returned {what}{f' for {name}' if name else ''}, not a finite number",
                "kind": "not_finite",
            }
        values[str(name)] = number
    return {"values": values}


def _number(value: Any) -> float | None:
    """A finite float, from whatever counts as a number: numpy's and torch's scalars do, text does not."""
    if not hasattr(value, "__float__"):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _send(stream: BinaryIO, message: Mapping[str, Any]) -> None:
    stream.write(encode(message))
    stream.flush()


def _take_over_standard_streams() -> tuple[BinaryIO, BinaryIO]:
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return requests, replies


def _die_with_parent(parent_pid: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        # The kernel, short of memory, ends a reward worker rather than what trains.
        Path("/proc/self/oom_score_adj").write_text("1000")
    if os.getppid() != parent_pid:
        os._exit(0)


def _limit_memory(limit_bytes: int | None) -> None:
    if limit_bytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
