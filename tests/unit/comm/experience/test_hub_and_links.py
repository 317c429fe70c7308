"""Hub and links over loopback sockets in one process."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
import zmq

from trimtab.comm.experience import AsyncExperienceLink, ExperienceHub, ExperienceLink, Message
from trimtab.comm.experience.frames import encode
from trimtab.comm.experience.sockets import HIGH_WATER_MARK
from trimtab.errors import DeadlineError, UserError, WorkerLostError

NAME = "rollout-1/rank-0"


@asynccontextmanager
async def hub_and_address() -> AsyncIterator[tuple[ExperienceHub, str]]:
    hub = ExperienceHub()
    try:
        async with asyncio.timeout(30):
            yield hub, hub.bind("tcp://127.0.0.1:*")
    finally:
        hub.close()


def test_messages_travel_both_ways_in_order() -> None:
    async def main() -> None:
        async with hub_and_address() as (hub, address):
            link = AsyncExperienceLink(NAME, address)
            for step in range(100):
                await hub.send(NAME, Message("batch", {"step": step}, {"x": np.full(step, step)}), 5)
                await link.send(Message("log_probs", {"step": step}), 5)
            for step in range(100):
                received = await link.recv(5)
                assert received.meta["step"] == step
                np.testing.assert_array_equal(received.arrays["x"], np.full(step, step))
                assert await hub.recv() == (NAME, Message("log_probs", {"step": step}))
            link.close()

    asyncio.run(main())


def test_blocking_link_receives_arrays_it_may_write_to() -> None:
    async def main() -> None:
        async with hub_and_address() as (hub, address):

            def role() -> None:
                link = ExperienceLink(NAME, address)
                array = link.recv(10).arrays["x"]
                array *= 2
                link.send(Message("doubled", {}, {"x": array}), 10)
                link.close()

            thread = threading.Thread(target=role)
            thread.start()
            await hub.send(NAME, Message("x", {}, {"x": np.arange(100_000, dtype=np.float32)}), 10)
            _, answer = await hub.recv()
            np.testing.assert_array_equal(answer.arrays["x"], np.arange(100_000, dtype=np.float32) * 2)
            await asyncio.to_thread(thread.join)

    asyncio.run(main())


def test_pods_with_ipv6_addresses_meet() -> None:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6 loopback address")

    async def main() -> None:
        hub = ExperienceHub()
        link = AsyncExperienceLink(NAME, hub.bind("tcp://[::1]:*"))
        await hub.send(NAME, Message("generate"), 10)
        assert (await link.recv(10)).kind == "generate"
        link.close()
        hub.close()

    asyncio.run(main())


def test_idle_blocking_link_that_is_told_to_follow_is_found_at_the_hubs_new_address() -> None:
    async def main() -> None:
        async with hub_and_address() as (_, old), hub_and_address() as (hub, new):
            link = ExperienceLink(NAME, old)
            link.set_address(new)
            with pytest.raises(WorkerLostError):
                await hub.send(NAME, Message("batch"), 0.3)
            link.follow()
            await hub.send(NAME, Message("batch"), 10)
            assert (await asyncio.to_thread(link.recv, 10)).kind == "batch"
            link.close()

    asyncio.run(main())


def test_send_to_a_worker_that_never_connects_names_it() -> None:
    async def main() -> None:
        async with hub_and_address() as (hub, _):
            with pytest.raises(WorkerLostError, match="rollout-1/rank-0 has no connection"):
                await hub.send(NAME, Message("generate"), 0.1)

    asyncio.run(main())


def test_send_waits_for_a_worker_that_connects_late() -> None:
    async def main() -> None:
        async with hub_and_address() as (hub, address):
            sending = asyncio.create_task(hub.send(NAME, Message("generate"), 10))
            await asyncio.sleep(0)  # the send has met no connection
            link = AsyncExperienceLink(NAME, address)
            assert (await link.recv(10)).kind == "generate"
            await sending
            link.close()

    asyncio.run(main())


def test_send_to_a_worker_that_does_not_read_waits_and_holds_up_no_other() -> None:
    async def main() -> None:
        async with hub_and_address() as (hub, address):
            slow, quick = AsyncExperienceLink("slow", address), AsyncExperienceLink("quick", address)
            large = Message("batch", {}, {"x": np.zeros(256 * 1024, np.float64)})
            with pytest.raises(DeadlineError, match=r"slow did not take a 'batch' message within 0\.2 s"):
                for _ in range(4 * HIGH_WATER_MARK):
                    await hub.send("slow", large, 0.2)
            blocked = asyncio.create_task(hub.send("slow", large, 10))
            await hub.send("quick", Message("generate"), 5)
            assert (await quick.recv(5)).kind == "generate"
            assert not blocked.done()
            while not blocked.done():  # reading lets the blocked send through
                await slow.recv(5)
            await blocked
            slow.close()
            quick.close()

    asyncio.run(main())


def test_recv_past_its_deadline_names_who_was_waited_for() -> None:
    async def main() -> None:
        async with hub_and_address() as (_, address):
            link = AsyncExperienceLink(NAME, address)
            with pytest.raises(DeadlineError, match=r"rollout-1/rank-0 got no message within 0\.05 s"):
                await link.recv(0.05)
            link.close()

    asyncio.run(main())
    link = ExperienceLink(NAME, "tcp://127.0.0.1:9")
    with pytest.raises(DeadlineError, match=r"got no message within 0\.05 s"):
        link.recv(0.05)
    link.close()


def test_restarted_worker_takes_over_its_name() -> None:
    async def main() -> None:
        async with hub_and_address() as (hub, address):
            context = zmq.Context()
            dead = context.socket(zmq.DEALER)  # its connection stands, as when a machine vanished
            dead.setsockopt(zmq.IDENTITY, NAME.encode())
            dead.setsockopt(zmq.RECONNECT_IVL, -1)
            dead.connect(address)
            dead.send_multipart(encode(Message("hello")))
            await hub.recv()
            link = AsyncExperienceLink(NAME, address)
            await link.send(Message("hello again"), 5)
            assert (await hub.recv())[1].kind == "hello again"
            await hub.send(NAME, Message("generate"), 5)
            assert (await link.recv(5)).kind == "generate"
            dead.close(linger=0)
            context.term()
            link.close()

    asyncio.run(main())


def test_worker_follows_the_coordinator_to_another_address() -> None:
    async def main() -> None:
        async with hub_and_address() as (_, address), hub_and_address() as (second, second_address):
            link = AsyncExperienceLink(NAME, address)
            waiting = asyncio.create_task(link.recv(10))
            await asyncio.to_thread(link.set_address, second_address)
            await second.send(NAME, Message("generate"), 10)
            assert (await waiting).kind == "generate"
            link.close()

    asyncio.run(main())


def test_malformed_messages_are_counted_and_skipped() -> None:
    async def main() -> None:
        async with hub_and_address() as (hub, address):
            context = zmq.Context()
            stranger = context.socket(zmq.DEALER)
            stranger.connect(address)  # its identity is random bytes
            stranger.send_multipart([b"garbage"])
            known = context.socket(zmq.DEALER)
            known.setsockopt(zmq.IDENTITY, NAME.encode())
            known.connect(address)
            known.send_multipart([b"\x80\x04pickle", b"x"])
            link = AsyncExperienceLink("actor-0/rank-0", address)
            await link.send(Message("hello"), 5)
            assert (await hub.recv())[1].kind == "hello"
            while hub.num_refused < 2:
                await link.send(Message("again"), 5)
                await hub.recv()
            for socket in (stranger, known):
                socket.close(linger=0)
            context.term()
            link.close()

    asyncio.run(main())


def test_bind_to_a_port_in_use_says_so() -> None:
    async def main() -> None:
        async with hub_and_address() as (_, address):
            other = ExperienceHub()
            with pytest.raises(UserError, match="cannot listen on tcp://"):
                other.bind(address)
            other.close()

    asyncio.run(main())
