"""The two sockets of a server: calls as msgpack-RPC on one port, streams on the next, both on 127.0.0.1 alone."""

from __future__ import annotations

import asyncio
import functools
import socket
import struct
from collections.abc import Callable
from typing import Any

import msgpack

from mcnn_ray.carla.lite.wire import frame_bytes

__all__ = ["HOST", "CallProtocol", "Streams"]

HOST = "127.0.0.1"
_LARGEST_CALL_BYTES = 64 * 2**20  # an OpenDRIVE file travels in one call
_LARGEST_BACKLOG_BYTES = 32 * 2**20
_RESPONSE = 1

Answer = Callable[[str, list[Any], Callable[[Any], None]], None]


class CallProtocol(asyncio.Protocol):
    """One client's calls, answered in their order; bytes that are none close this connection and no other.

    Args:
        answer: takes a method, its arguments and where its result goes, which may be called later or never.
        garble: gives bytes to send instead of a reply, or None; see `faults`.
    """

    def __init__(self, answer: Answer, garble: Callable[[], bytes | None] = lambda: None) -> None:
        self._answer = answer
        self._garble = garble
        self._transport: asyncio.Transport | None = None
        self._unpacker = msgpack.Unpacker(
            raw=False, strict_map_key=False, max_buffer_size=_LARGEST_CALL_BYTES, unicode_errors="replace"
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        self._transport = _without_delay(transport)

    def data_received(self, data: bytes) -> None:
        """Answer every call that is whole by now."""
        calls: list[tuple[str, list[Any], int | None]] = []
        try:
            self._unpacker.feed(data)
            calls.extend(_call(message) for message in self._unpacker)
        # msgpack's errors are ValueErrors, but for a full buffer; a dictionary's key may be unhashable.
        except (ValueError, TypeError, RecursionError, MemoryError, msgpack.UnpackException):
            if self._transport is not None:
                self._transport.abort()
        for method, arguments, number in calls:
            self._answer(method, arguments, functools.partial(self._reply, number))

    def _reply(self, number: int | None, result: Any) -> None:
        if number is not None and self._transport is not None and not self._transport.is_closing():
            garbage = self._garble()
            self._transport.write(msgpack.packb([_RESPONSE, number, None, result]) if garbage is None else garbage)


def _without_delay(transport: asyncio.BaseTransport) -> asyncio.Transport:
    """Let a small answer not wait until the one before it is acknowledged, which would take 40 ms."""
    assert isinstance(transport, asyncio.Transport)
    # asyncio does so itself, but not for sockets it did not make.
    transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return transport


def _call(message: Any) -> tuple[str, list[Any], int | None]:
    """Return method, arguments and number of a call; a notification has no number."""
    match message:
        case [0, int(number), str(method), list(arguments)]:
            return method, arguments, number
        case [2, str(method), list(arguments)]:
            return method, arguments, None
    raise ValueError("neither a request nor a notification")


class Streams:
    """Who listens to which stream.

    A client connects once a stream, sends the stream's number (u32) and then only reads.

    Attributes:
        awaited: streams that a client has asked the address of and not yet connected to.
    """

    def __init__(self) -> None:
        self._listeners: dict[int, list[asyncio.Transport]] = {}
        self.awaited: set[int] = set()

    def protocol(self) -> asyncio.Protocol:
        """Return what handles a new connection."""
        return _StreamProtocol(self._listeners, self.awaited)

    def listened(self, stream: int) -> bool:
        """Return whether anyone listens."""
        return bool(self._listeners.get(stream))

    def send(self, stream: int, message: bytes) -> None:
        """Send a message to all who listen; those too far behind miss it."""
        framed = frame_bytes(message)
        for transport in self._listeners.get(stream, ()):
            if transport.get_write_buffer_size() < _LARGEST_BACKLOG_BYTES:
                transport.write(framed)


class _StreamProtocol(asyncio.Protocol):
    def __init__(self, listeners: dict[int, list[asyncio.Transport]], awaited: set[int]) -> None:
        self._listeners = listeners
        self._awaited = awaited
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._stream: int | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = _without_delay(transport)

    def data_received(self, data: bytes) -> None:
        if self._stream is None and self._transport is not None:
            self._received += data
            if len(self._received) >= 4:
                (self._stream,) = struct.unpack("<I", self._received[:4])
                self._listeners.setdefault(self._stream, []).append(self._transport)
                self._awaited.discard(self._stream)

    def connection_lost(self, exception: Exception | None) -> None:
        if self._stream is not None and self._transport is not None:
            self._listeners[self._stream].remove(self._transport)
            if not self._listeners[self._stream]:
                del self._listeners[self._stream]
