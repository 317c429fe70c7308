"""Weight groups among real processes: agreement, loss of a member, and the group after it."""

import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch.distributed import PrefixStore, TCPStore

from trimtab.comm.weights import TransferError, WeightGroup, WeightSender, build_manifest
from trimtab.errors import DeadlineError

pytestmark = pytest.mark.slow

_SHAPES = [("embed", (64, 32)), ("layer.w", (128, 128)), ("layer.b", (128,)), ("head", (64, 32))]
_BUCKET_BYTES = 20_000


def _weights(version):
    return [(name, torch.full(shape, float(version) + i)) for i, (name, shape) in enumerate(_SHAPES)]


def _manifest(shapes=_SHAPES):
    return build_manifest(shapes, dtype=torch.bfloat16, bucket_bytes=_BUCKET_BYTES)


class _Member:
    """A receiver process."""

    def __init__(self, port):
        script = Path(__file__).with_name("weight_receiver.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answers = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self._answers.put(json.loads(line))

    def tell(self, verb, **arguments):
        self.process.stdin.write(json.dumps({"verb": verb, **arguments}) + "\n")
        self.process.stdin.flush()

    def receive(self, version, **arguments):
        defaults = {"shapes": _SHAPES, "bucket_bytes": _BUCKET_BYTES, "timeout_s": 120.0}
        self.tell("receive", version=version, **(defaults | arguments))

    def answer(self):
        return self._answers.get(timeout=120)

    def close(self):
        self.process.kill()
        self.process.wait(10)
        self._reader.join(10)
        self.process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()


@pytest.fixture
def store():
    return TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=30), wait_for_workers=False)


@pytest.fixture
def members(store):
    """Starts receivers on demand; ends them all."""
    made = []

    def make(count):
        made.extend(_Member(store.port) for _ in range(count))
        return made[-count:]

    yield make
    for member in made:
        member.close()


def _join(store, name, members, timeout_s=120.0, device="cpu"):
    told = {"group": name, "world_size": len(members) + 1, "timeout_s": timeout_s, "device": device}
    for rank, member in enumerate(members, start=1):
        member.tell("join", rank=rank, **told)
    group = WeightGroup.join(
        name,
        backend="gloo",
        store_host="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=len(members) + 1,
        timeout_s=timeout_s,
        device=device,
    )
    for member in members:
        assert member.answer()["error"] is None
    return group


def _send(group, version, timeout_s=120.0, weights=None):
    return WeightSender(group).send(
        version, weights or _weights(version), _manifest(), _BUCKET_BYTES, timeout_s
    )


def test_publication_reaches_every_receiver_twice_over_one_group(store, members):
    receivers = members(2)
    group = _join(store, "a", receivers)
    for version in (1, 2):
        for member in receivers:
            member.receive(version)
        assert _send(group, version) == 2 * sum(t.numel() for _, t in _weights(0))
        for member in receivers:
            assert member.answer()["got"] == {
                name: pytest.approx(version + i) for i, (name, _) in enumerate(_SHAPES)
            }
    group.abort()
    assert PrefixStore("weights/a", store).get("over") == b"rank 0 has left"


def test_publication_over_gloo_goes_through_the_cpu_wherever_the_members_weights_are(store, members):
    (receiver,) = members(1)
    group = _join(store, "a", [receiver], device="cuda")
    assert group.device.type == "cpu"
    receiver.receive(1)
    _send(group, 1)
    answer = receiver.answer()
    assert answer["error"] is None
    assert answer["got"]["head"] == pytest.approx(4.0)
    group.abort()


def test_receiver_killed_mid_broadcast_all_give_up_and_a_new_group_works(store, members):
    killed, left = members(2)
    group = _join(store, "a", [killed, left])
    killed.receive(1, die_at_tensor="layer.w", signal="SIGKILL")
    left.receive(1)
    drawn = []

    def source():
        for name, tensor in _weights(1):
            drawn.append(name)
            yield name, tensor

    start = time.monotonic()
    with pytest.raises(DeadlineError, match=r"weight group 'a'.*no word from rank 1$"):
        _send(group, 1, weights=source())
    assert time.monotonic() - start < 60
    assert drawn == [name for name, _ in _SHAPES], "the other actor ranks would hang in the gather"
    name, message = left.answer()["error"]
    assert name == "DeadlineError"
    assert message.endswith("no word from rank 1")
    assert group.aborted
    again = _join(store, "b", [left])
    left.receive(1)
    _send(again, 1)
    assert left.answer()["got"]["head"] == pytest.approx(4.0)
    again.abort()


def test_receiver_stopped_mid_broadcast_is_named_at_the_deadline(store, members):
    stopped, left = members(2)
    group = _join(store, "a", [stopped, left])
    stopped.receive(1, die_at_tensor="embed", signal="SIGSTOP")
    left.receive(1)
    start = time.monotonic()
    with pytest.raises(DeadlineError, match=r"the deadline has passed.*rank 1"):
        _send(group, 1, timeout_s=3.0)
    assert time.monotonic() - start < 60  # deadline 3, backend margin 2, grace for reports 2
    answer = left.answer()
    assert answer["error"][0] == "DeadlineError"
    assert answer["seconds"] < 60


def test_missing_member_is_named_when_joining(store, members):
    (receiver,) = members(1)
    receiver.tell("join", group="a", rank=1, world_size=4, timeout_s=2.0)
    with pytest.raises(DeadlineError, match=r"rank 0 waited for .*rank 2, rank 3 of 4 in vain"):
        WeightGroup.join(
            "a",
            backend="gloo",
            store_host="127.0.0.1",
            store_port=store.port,
            rank=0,
            world_size=4,
            timeout_s=2.0,
        )
    assert "rank 3 of 4 in vain" in receiver.answer()["error"][1]


def _join_until_told(store, world_size, told, timeout_s=120.0):
    start = time.monotonic()
    with pytest.raises(DeadlineError) as raised:
        WeightGroup.join(
            "a",
            backend="gloo",
            store_host="127.0.0.1",
            store_port=store.port,
            rank=0,
            world_size=world_size,
            timeout_s=timeout_s,
            given_up=told,
        )
    assert time.monotonic() - start < timeout_s / 2
    return str(raised.value)


def test_member_that_is_lost_before_it_joins_ends_the_meeting_for_all_at_once(store, members):
    (left,) = members(1)
    left.tell("join", group="a", rank=2, world_size=3, timeout_s=120.0)
    corner = PrefixStore("weights/a", store)
    own = "rank 0 waited for rank 1 of 3; rollout-1 was lost"
    error = _join_until_told(store, 3, lambda: "rollout-1 was lost" if corner.check(["here/2"]) else None)
    assert error == f"weight group 'a': {own}"
    assert left.answer()["error"] == [
        "DeadlineError",
        f"weight group 'a': rank 2 waited for rank 1 of 3; {own}",
    ]
    again = _join(store, "b", [left])
    left.receive(1)
    _send(again, 1)
    assert left.answer()["error"] is None
    again.abort()


def test_member_that_is_lost_while_all_connect_ends_the_meeting_for_all_at_once(store, members):
    (left,) = members(1)
    corner = PrefixStore("weights/a", store)
    corner.set("here/1", "1")  # and then it was killed
    left.tell("join", group="a", rank=2, world_size=3, timeout_s=120.0)

    def told():
        connecting = any(thread.name == "connect a" for thread in threading.enumerate())
        return "rollout-1 was lost" if connecting else None

    own = "rank 0 was connecting to the others of 3; rollout-1 was lost"
    assert _join_until_told(store, 3, told, timeout_s=60.0) == f"weight group 'a': {own}"
    assert left.answer()["error"][1].endswith(own)


@pytest.mark.parametrize(
    ("told", "complaint"),
    [
        pytest.param({"version": 2}, "rank 1 expects another version", id="version"),
        pytest.param(
            {"version": 1, "shapes": _SHAPES[:-1]}, "rank 1 expects another manifest", id="manifest"
        ),
        pytest.param({"version": 1, "fail": True}, "rank 1 could not load the weights", id="load"),
    ],
)
def test_receiver_that_cannot_take_it_is_named_to_the_sender(store, members, told, complaint):
    (receiver,) = members(1)
    group = _join(store, "a", [receiver])
    receiver.receive(**told)
    with pytest.raises(TransferError, match=complaint):
        _send(group, 1)
    assert receiver.answer()["error"][0] == "TransferError"
    assert group.aborted


@pytest.mark.parametrize("at", range(len(_SHAPES)), ids=[name for name, _ in _SHAPES])
def test_weights_that_differ_from_the_manifest_end_the_group_for_everyone_at_once(store, members, at):
    (receiver,) = members(1)
    group = _join(store, "a", [receiver])
    receiver.receive(1)
    weights = _weights(1)
    weights[at] = ("nonsense", weights[at][1])
    with pytest.raises(ValueError, match=f"yielded 'nonsense' .* where the manifest has '{_SHAPES[at][0]}'"):
        _send(group, 1, weights=weights)
    answer = receiver.answer()
    assert answer["error"][0] == "DeadlineError"
    assert "no word" not in answer["error"][1]
    assert answer["seconds"] < 60
