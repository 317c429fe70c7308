"""RewardPool with real worker processes: whatever a function does costs its own sample only."""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pytest

from trimtab.errors import DeadlineError, UserError, WorkerLostError
from trimtab.rewards import RewardCall, RewardPool, ScoreResult

MEMORY_LIMIT_BYTES = 512 << 20


def call(function: str, **settings: Any) -> RewardCall:
    if ":" not in function and function not in ("exact_match", "length"):
        function = f"user_rewards:{function}"
    return RewardCall(name=function.partition(":")[2] or function, function=function, **settings)


def run_pool(
    code_dir: Path,
    calls: Sequence[RewardCall] | Mapping[str, Sequence[RewardCall]],
    body: Callable[[RewardPool], Awaitable[Any]],
    *,
    num_workers: int = 1,
    start_timeout_s: float = 60.0,
) -> Any:
    async def main() -> Any:
        lists = calls if isinstance(calls, Mapping) else {"train": calls}
        pool = RewardPool(
            lists,
            num_workers=num_workers,
            code_paths=[code_dir],
            memory_limit_bytes=MEMORY_LIMIT_BYTES,
            start_timeout_s=start_timeout_s,
        )
        await pool.start()
        try:
            return await body(pool)
        finally:
            await pool.close()

    return asyncio.run(asyncio.wait_for(main(), 90))


async def score(pool: RewardPool, response: str, list_name: str = "train", **fields: Any) -> ScoreResult:
    return await pool.score(list_name, prompt="p", response=response, fields=fields)


def test_scores_of_every_function_in_order_with_weights(code_dir: Path) -> None:
    calls = [
        call("exact_match", weight=2.0),
        call("good", arguments={"bonus": 0.5}, weight=-1.0),
        call("slow_but_fine"),
        call("parts", weight=3.0),
    ]
    result = run_pool(code_dir, calls, lambda pool: score(pool, "42", answer="42"))
    assert not result.errors
    assert [(s.name, s.value, s.weight) for s in result.scores] == [
        ("exact_match", 1.0, 2.0),
        ("good", 2.5, -1.0),
        ("slow_but_fine", 2.0, 1.0),
        ("parts/correct", 0.5, 3.0),
        ("parts/short", 1.0, 3.0),
    ]


def test_training_and_validation_have_their_own_lists(code_dir: Path) -> None:
    async def both(pool: RewardPool) -> list[ScoreResult]:
        return [await score(pool, "42", name, answer="41") for name in ("train", "validation")]

    lists = {"train": [call("good")], "validation": [call("exact_match")]}
    train, validation = run_pool(code_dir, lists, both)
    assert [train.scores[0].value, validation.scores[0].value] == [2.0, 0.0]


@pytest.fixture(scope="module")
def shared_pool(code_dir: Path) -> Iterator[Callable[..., Any]]:
    """One pool for all misbehaviour, on a loop of its own thread: call it with a coroutine function."""
    calls = [call("good"), call("behave", timeout_s=1.5), call("parts")]
    pool = RewardPool(
        {"train": calls}, num_workers=2, code_paths=[code_dir], memory_limit_bytes=MEMORY_LIMIT_BYTES
    )
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()

    def run(body: Callable[[RewardPool], Coroutine[Any, Any, Any]]) -> Any:
        return asyncio.run_coroutine_threadsafe(body(pool), loop).result(timeout=60)

    run(RewardPool.start)
    yield run
    run(RewardPool.close)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(timeout=10)
    loop.close()


@pytest.mark.parametrize(
    ("response", "kind", "message", "num_restarts"),
    [
        ("raise", "raised", r"ValueError: the row is odd \(user_rewards\.py:\d+ in behave\)", 0),
        ("sys.exit", "raised", r"SystemExit: 3", 0),
        ("nan", "not_finite", r"returned nan \(float\), not a finite number", 0),
        ("inf", "not_finite", r"returned inf \(float\) for b, not a finite number", 0),
        ("none", "not_finite", r"returned None \(NoneType\)", 0),
        ("text", "not_finite", r"returned '0\.5' \(str\)", 0),
        ("hang", "timeout", r"took longer than 1\.5 s", 1),
        ("spin", "timeout", r"took longer than 1\.5 s", 1),
        ("os._exit", "died", r"the process ended with exit code 7", 1),
        ("segfault", "died", r"the process was killed by SIGSEGV", 1),
        ("sigkill", "died", r"was killed by SIGKILL, as the kernel does where memory runs out", 1),
        ("memory", "died", r"MemoryError: more memory than a reward worker may have \(512 MiB\)", 1),
    ],
)
def test_misbehaviour_costs_the_sample_alone(
    shared_pool: Callable[..., Any], response: str, kind: str, message: str, num_restarts: int
) -> None:
    async def body(pool: RewardPool) -> tuple[list[ScoreResult], int]:
        before = pool.num_restarts
        results = await asyncio.gather(*(score(pool, r) for r in ("fine", response, "fine", "fine")))
        return results, pool.num_restarts - before

    (first, bad, *others), restarts = shared_pool(body)
    assert [len(r.scores) for r in (first, bad, *others)] == [4, 1, 4, 4]
    assert not any(r.errors for r in (first, *others))
    (error,) = bad.errors
    assert (error.name, error.kind) == ("behave", kind)
    assert re.search(message, error.error), error.error
    assert restarts == num_restarts


def test_a_hanging_call_does_not_hold_up_another_worker(code_dir: Path) -> None:
    async def body(pool: RewardPool) -> None:
        hanging = asyncio.ensure_future(score(pool, "hang"))
        results = await asyncio.wait_for(asyncio.gather(*(score(pool, "fine") for _ in range(20))), 20)
        assert not hanging.done()
        assert all(not result.errors for result in results)
        hanging.cancel()
        await asyncio.gather(hanging, return_exceptions=True)
        assert not (await score(pool, "fine")).errors

    run_pool(code_dir, [call("behave", timeout_s=60.0)], body, num_workers=2)


def test_what_a_function_prints_does_not_disturb_the_protocol(code_dir: Path) -> None:
    result = run_pool(code_dir, [call("printing"), call("good")], lambda pool: score(pool, "ab"))
    assert [s.value for s in result.scores] == [1.0, 2.0]


def test_what_a_killed_worker_has_started_ends_with_it(code_dir: Path, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    calls = [call("behave", timeout_s=2.0)]
    result = run_pool(code_dir, calls, lambda pool: score(pool, "grandchild", pid_file=str(pid_file)))
    assert result.errors[0].kind == "timeout"
    _, alive = psutil.wait_procs(_processes(int(pid_file.read_text())), timeout=10)
    assert not alive


def test_worker_that_dies_while_idle_is_replaced_unnoticed(code_dir: Path) -> None:
    async def body(pool: RewardPool) -> None:
        first = int((await score(pool, "")).scores[0].value)
        os.kill(first, 9)
        psutil.wait_procs(_processes(first), timeout=10)
        results = [await score(pool, "") for _ in range(3)]
        assert first not in [int(r.scores[0].value) for r in results if r.scores]
        assert sum(bool(r.errors) for r in results) <= 1

    run_pool(code_dir, [call("pid")], body)


def test_worker_that_cannot_be_replaced_fails_the_caller(tmp_path: Path) -> None:
    module = tmp_path / "fading_rewards.py"
    module.write_text("import os\ndef score(*, prompt, response, fields):\n    os._exit(1)\n")

    async def body(pool: RewardPool) -> None:
        module.write_text("raise RuntimeError('no longer')\n")
        assert (await score(pool, "")).errors[0].kind == "died"
        with pytest.raises(UserError, match="no longer"):
            await score(pool, "")

    run_pool(tmp_path, [call("fading_rewards:score")], body)


def test_close_leaves_no_process_behind(code_dir: Path) -> None:
    async def body(pool: RewardPool) -> set[int]:
        results = await asyncio.gather(*(score(pool, "") for _ in range(20)))
        return {int(result.scores[0].value) for result in results}

    pids = run_pool(code_dir, [call("pid")], body, num_workers=2)
    assert pids
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_large_and_odd_texts_arrive_unchanged(code_dir: Path) -> None:
    text = "\u00e4\U0001f600\ud800\0\n" * 100_000
    result = run_pool(
        code_dir, [call("exact_match"), call("good")], lambda pool: score(pool, text, answer=text)
    )
    assert [s.value for s in result.scores] == [1.0, float(len(text))]


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        ("broken_rewards:score", UserError, r"(?s)broken_rewards\.py.*line 2.*KeyError"),
        ("user_rewards:absent", UserError, "has no 'absent'"),
        ("endless_rewards:score", DeadlineError, r"importing endless_rewards:score took longer than 2 s"),
        ("leaving_rewards:score", WorkerLostError, r"ended with exit code 5 while it imported"),
    ],
)
def test_start_with_a_function_that_cannot_be_used_raises(
    code_dir: Path, function: str, error: type[Exception], message: str
) -> None:
    async def never(pool: RewardPool) -> None:
        raise AssertionError("started")

    timeout_s = 2.0 if "endless" in function else 60.0
    with pytest.raises(error, match=message):
        run_pool(code_dir, [call(function)], never, num_workers=2, start_timeout_s=timeout_s)


def _processes(*pids: int) -> list[psutil.Process]:
    return [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
