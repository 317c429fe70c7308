"""Throughput of the experience plane over loopback, between two processes, against ZeroMQ itself.

    python benchmarks/experience_plane.py [--sizes 1 8 64] [--total 2048]

The same bytes go once as `Message`s from a hub to a link (checked header, arrays without copies) and
once as bare frames over the same kind of sockets with ZeroMQ's copying sends. Prints GB/s and the ratio.
A step's batch is a few MiB (100,000 tokens are about 2 MiB); with 64 MiB the receiver's page faults cost
more than the copying.
"""

import argparse
import asyncio
import multiprocessing
import time
from multiprocessing.connection import Connection

import numpy as np
import zmq

from trimtab.comm.experience import ExperienceHub, ExperienceLink, Message

NAME = "actor-0/rank-0"
TIMEOUT_S = 60.0


def receive_messages(address: str, num_messages: int, done: Connection) -> None:
    """The worker's side; sends the time of the last arrival."""
    link = ExperienceLink(NAME, address)
    for _ in range(num_messages + 1):
        arrays = link.recv(TIMEOUT_S).arrays
        assert arrays["log_probs"].dtype == np.float32
    done.send(time.perf_counter())
    link.close()


def receive_frames(address: str, num_messages: int, done: Connection) -> None:
    """The same with bare frames."""
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.IDENTITY, NAME.encode())
    socket.connect(address)
    for _ in range(num_messages + 1):
        socket.recv_multipart(copy=True)
    done.send(time.perf_counter())
    socket.close()
    context.term()


async def send_messages(hub: ExperienceHub, array: np.ndarray, num_messages: int) -> float:
    """Send all and return when the first after the warm-up left."""
    await hub.send(NAME, Message("batch", {"key": "warm-up"}, {"log_probs": array}), TIMEOUT_S)
    began = time.perf_counter()
    for step in range(num_messages):
        await hub.send(NAME, Message("batch", {"key": f"step-{step}"}, {"log_probs": array}), TIMEOUT_S)
    return began


def through_trimtab(array: np.ndarray, num_messages: int) -> float:
    """Seconds for all messages through hub and link."""

    async def main() -> float:
        hub = ExperienceHub()
        address = hub.bind("tcp://127.0.0.1:*")
        ours, theirs = multiprocessing.Pipe()
        process = SPAWN.Process(target=receive_messages, args=(address, num_messages, theirs))
        process.start()
        began = await send_messages(hub, array, num_messages)
        ended = await asyncio.to_thread(ours.recv)
        process.join(TIMEOUT_S)
        hub.close()
        return ended - began

    return asyncio.run(main())


def through_zmq(array: np.ndarray, num_messages: int) -> float:
    """Seconds for the same bytes through bare sockets."""
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    ours, theirs = multiprocessing.Pipe()
    address = f"tcp://127.0.0.1:{port}"
    process = SPAWN.Process(target=receive_frames, args=(address, num_messages, theirs))
    process.start()
    frames = [NAME.encode(), b"header", memoryview(array)]
    while True:
        try:
            socket.send_multipart(frames, copy=True)
            break
        except zmq.ZMQError as error:
            assert error.errno == zmq.EHOSTUNREACH
            time.sleep(0.01)
    began = time.perf_counter()
    for _ in range(num_messages):
        socket.send_multipart(frames, copy=True)
    ended = float(ours.recv())
    process.join(TIMEOUT_S)
    socket.close()
    context.term()
    return ended - began


SPAWN = multiprocessing.get_context("spawn")


def main() -> None:
    """Measure both with each size and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 8, 64], help="sizes of a message, in MiB")
    parser.add_argument("--total", type=int, default=2048, help="MiB to send with each size")
    args = parser.parse_args()
    for size in args.sizes:
        array = np.random.default_rng(0).standard_normal(size * 2**20 // 4, np.float32)
        num_messages = max(1, args.total // size)
        total = array.nbytes * num_messages / 1e9
        trimtab_s = through_trimtab(array, num_messages)
        zmq_s = through_zmq(array, num_messages)
        print(
            f"{num_messages} messages of {size} MiB: trimtab {total / trimtab_s:.2f} GB/s, "
            f"zmq with copies {total / zmq_s:.2f} GB/s, ratio {zmq_s / trimtab_s:.2f}"
        )


if __name__ == "__main__":
    main()
