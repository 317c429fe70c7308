"""Numbers and names that both ends of the control plane agree on."""

from enum import StrEnum
from typing import Final

PROTOCOL_VERSION: Final = 1
"""Raised whenever an older peer would misread a message; a different version is refused."""

MAX_MESSAGE_BYTES: Final = 32 * 1024 * 1024
"""A weight manifest of a large model with many experts is a few MiB; bulk data never travels here."""

REGISTRATION_TIMEOUT_S: Final = 10.0
"""The first message of a stream and the answer to it must each arrive within this."""

SERVER_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # a port in use is an error, not a second silent listener
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.server_handshake_timeout_ms", 10_000),  # a peer that connects and says nothing
)

_CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Every dial is a channel of its own with our backoff; a shared subchannel would bring gRPC's.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.http2.max_pings_without_data", 0),
)


def channel_options(*, silence_s: float = 20.0) -> tuple[tuple[str, int], ...]:
    """Options of a channel to the coordinator.

    A coordinator whose machine vanished sends no FIN: pings find out, within `silence_s`.
    """
    each_ms = max(1000, int(silence_s * 1000 / 3))  # a ping, and its answer's deadline, within two thirds
    return (
        *_CHANNEL_OPTIONS,
        ("grpc.keepalive_time_ms", each_ms),
        ("grpc.keepalive_timeout_ms", each_ms),
        ("grpc.http2.ping_timeout_ms", each_ms),  # else a minute, whatever the line above says
    )


class RefusalReason(StrEnum):
    """Why a registration was refused; a refusal is final for that process."""

    PROTOCOL_VERSION = "protocol-version"
    TRAINING_IDENTITY = "training-identity"
    ATTEMPT_OLDER = "attempt-older"
    INCARNATION_OLDER = "incarnation-older"
    NOT_ADMITTED = "not-admitted"
    NOT_A_REGISTRATION = "not-a-registration"
