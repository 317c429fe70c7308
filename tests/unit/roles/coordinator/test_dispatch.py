"""WorkPool: who gets which item, and what happens when a replica goes. The hub records what is sent."""

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from trimtab.comm.control import WorkerKey
from trimtab.comm.experience import FrameError, Message
from trimtab.errors import UserError, WorkerLostError
from trimtab.roles.coordinator import dispatch
from trimtab.roles.coordinator.dispatch import WorkPool
from trimtab.roles.coordinator.membership import Desired, Member, Members
from trimtab.v1 import control_pb2 as pb


class RecordingHub:
    def __init__(self) -> None:
        self.sent: list[tuple[str, Message]] = []
        self.unreachable: set[str] = set()

    async def send(self, worker: str, message: Message, timeout_s: float) -> None:
        if worker in self.unreachable:
            raise WorkerLostError(f"{worker} has no connection to the experience plane")
        self.sent.append((worker, message))


class Scene:
    """A pool with its members; rollout n has the capacity that it joins with."""

    def __init__(self) -> None:
        self.members = Members(Desired(actor_ranks=1, rollouts=4, min_rollouts=1, rewards=1, min_rewards=1))
        self.hub = RecordingHub()
        self.overdue: list[tuple[str, str]] = []
        self.condemned = asyncio.Event()
        self.excluded: set[int] = set()
        self.pool = WorkPool(
            "rollout",
            self.members,
            self.hub,  # type: ignore[arg-type]
            instance="c1",
            eligible=lambda member: member.key.replica not in self.excluded,
            on_overdue=self.note_overdue,
            unreachable_s=0.2,
        )

    def note_overdue(self, member: Member, reason: str) -> None:
        self.overdue.append((str(member.key), reason))
        self.condemned.set()

    def join(self, replica: int, capacity: int, incarnation: int = 0) -> WorkerKey:
        key = WorkerKey("rollout", replica, 0, 0, incarnation)
        self.members.joined(key, pb.Register(worker=key.to_proto(), capacity=capacity))
        return key

    def submit(self, name: str, timeout_s: float = 100.0) -> "asyncio.Future[dispatch.Answer]":
        return self.pool.submit(
            "generate", {"episode_id": name}, {"prompt_ids": np.zeros(1)}, timeout_s=timeout_s
        )

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    def answer(self, number: int) -> None:
        worker, message = self.hub.sent[number]
        self.pool.answer(worker, Message("episode", {"episode_id": message.meta["episode_id"]}, {}))

    def fail(self, number: int, kind: str) -> None:
        worker, message = self.hub.sent[number]
        meta = {"episode_id": message.meta["episode_id"], "error": "no", "kind": kind}
        self.pool.failed(worker, Message("generate_failed", meta, {}))


def play(script: Callable[[Scene], Awaitable[None]]) -> None:
    async def scenario() -> None:
        scene = Scene()
        running = asyncio.create_task(scene.pool.run())
        try:
            await asyncio.wait_for(script(scene), 20.0)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())


def test_no_replica_holds_more_than_its_capacity_and_a_faster_one_gets_more():
    async def script(scene: Scene) -> None:
        scene.join(0, capacity=2)
        scene.join(1, capacity=1)
        futures = [scene.submit(f"e{i}") for i in range(6)]
        await scene.settle()
        assert scene.pool.outstanding() == {"rollout-0/rank-0": 2, "rollout-1/rank-0": 1}
        first_of_0 = next(i for i, (worker, _) in enumerate(scene.hub.sent) if worker == "rollout-0/rank-0")
        scene.answer(first_of_0)
        await scene.settle()
        assert [worker for worker, _ in scene.hub.sent][-1] == "rollout-0/rank-0"
        assert sum(f.done() for f in futures) == 1

    play(script)


def test_lost_replicas_items_go_to_another_and_its_late_answer_is_dropped():
    async def script(scene: Scene) -> None:
        lost = scene.join(0, capacity=4)
        future = scene.submit("e0")
        await scene.settle()
        scene.members.left(lost, "killed")
        scene.join(1, capacity=4)
        await scene.settle()
        scene.answer(0)
        assert not future.done()
        scene.answer(1)
        assert (await future).worker == "rollout-1/rank-0"
        assert scene.pool.take_counts().retried == 1

    play(script)


def test_item_survives_more_lost_replicas_than_it_may_fail():
    async def script(scene: Scene) -> None:
        future = scene.submit("e0")
        for incarnation in range(dispatch.MAX_TRIES + 2):
            key = scene.join(0, capacity=4, incarnation=incarnation)
            await scene.settle()
            scene.members.left(key, "killed")
        scene.join(0, capacity=4, incarnation=99)
        await scene.settle()
        scene.answer(-1)
        assert future.done()

    play(script)


def test_item_that_fails_everywhere_names_its_last_replica():
    async def script(scene: Scene) -> None:
        scene.join(0, capacity=4)
        future = scene.submit("e0")
        for number in range(dispatch.MAX_TRIES):
            await scene.settle()
            scene.fail(number, "oom")
        with pytest.raises(WorkerLostError, match="item e0 failed 3 times, last on rollout-0/rank-0: no"):
            await future
        assert scene.pool.take_counts().out_of_memory == 3

    play(script)


def test_item_that_is_wrong_in_itself_fails_at_once():
    async def script(scene: Scene) -> None:
        scene.join(0, capacity=4)
        future = scene.submit("e0")
        await scene.settle()
        scene.fail(0, "invalid")
        with pytest.raises(UserError, match="no"):
            await future

    play(script)


def test_item_past_its_deadline_condemns_its_replica():
    async def script(scene: Scene) -> None:
        scene.join(0, capacity=4)
        scene.submit("e0", timeout_s=0.0)
        await scene.condemned.wait()
        assert scene.overdue[0][0] == "rollout-0/rank-0"
        assert "oldest e0" in scene.overdue[0][1]

    play(script)


def test_item_past_its_deadline_condemns_its_replica_also_while_others_are_busy(monkeypatch):
    monkeypatch.setattr(dispatch, "LOOK_EVERY_S", 0.2)

    async def script(scene: Scene) -> None:
        scene.join(0, capacity=4)
        scene.submit("e0", timeout_s=0.0)
        while not scene.overdue:
            scene.pool.wake()
            await asyncio.sleep(0.01)
        assert scene.overdue[0][0] == "rollout-0/rank-0"

    play(script)


def test_item_that_no_message_can_carry_fails_and_its_replica_goes_on(monkeypatch):
    async def script(scene: Scene) -> None:
        async def refuse(worker: str, message: Message, timeout_s: float) -> None:
            raise FrameError("the header of a 'score' has 20000000 bytes, allowed 16777216")

        scene.join(0, capacity=1)
        with monkeypatch.context() as patch:
            patch.setattr(scene.hub, "send", refuse)
            with pytest.raises(UserError, match="rollout: item e0 cannot be sent: the header of a 'score'"):
                await scene.submit("e0")
        scene.submit("e1")
        await scene.settle()
        assert [message.meta["episode_id"].split("#")[0] for _, message in scene.hub.sent] == ["e1"]

    play(script)


def test_replica_with_other_weights_gets_nothing_until_it_is_eligible():
    async def script(scene: Scene) -> None:
        scene.excluded.add(0)
        scene.join(0, capacity=4)
        scene.submit("e0")
        await scene.settle()
        assert scene.hub.sent == []
        scene.excluded.clear()
        scene.pool.wake()
        await scene.settle()
        assert len(scene.hub.sent) == 1

    play(script)


def test_replica_that_cannot_be_reached_holds_up_no_other_and_is_condemned_in_the_end(monkeypatch):
    monkeypatch.setattr(dispatch, "PASSED_OVER_S", 0.05)

    async def script(scene: Scene) -> None:
        scene.hub.unreachable.add("rollout-0/rank-0")
        scene.join(0, capacity=4)
        scene.join(1, capacity=1)
        first = scene.submit("e0")
        await scene.settle()
        scene.answer(0)
        assert (await first).worker == "rollout-1/rank-0"
        scene.excluded.add(1)
        scene.submit("e1")
        while not scene.overdue:
            scene.pool.wake()
            await asyncio.sleep(0.01)
        assert scene.overdue[0] == (
            "rollout-0/rank-0",
            "rollout-0/rank-0 has no connection to the experience plane",
        )

    play(script)


def test_replica_that_is_reached_again_is_not_condemned(monkeypatch):
    monkeypatch.setattr(dispatch, "PASSED_OVER_S", 0.05)

    async def script(scene: Scene) -> None:
        for name in ("e0", "e1"):
            scene.hub.unreachable.add("rollout-0/rank-0")
            scene.join(0, capacity=4)
            scene.submit(name)
            await scene.settle()
            scene.hub.unreachable.clear()
            await asyncio.sleep(0.25)
            scene.pool.wake()
            await scene.settle()
        assert len(scene.hub.sent) == 2
        assert scene.overdue == []

    play(script)
