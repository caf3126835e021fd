"""The lite server as a process: sockets, the clock, the order of things in a tick, and a clean end."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from mcnn_ray.carla.lite.calls import WORLD_STREAM_NUMBER, Calls, failed, result
from mcnn_ray.carla.lite.faults import Faults
from mcnn_ray.carla.lite.maps import find_map
from mcnn_ray.carla.lite.motion import let_traffic_drive, tick
from mcnn_ray.carla.lite.rpc import HOST, CallProtocol, Streams
from mcnn_ray.carla.lite.sensors import sensor_message
from mcnn_ray.carla.lite.town import Town, load_town
from mcnn_ray.carla.lite.world import World
from mcnn_ray.errors import SimulationError

__all__ = ["serve"]

_SETTLE_S = 0.05
_CONNECT_S, _CONNECT_TRIES = 0.002, 500
_FREE_PORT_TRIES = 50


class _Server:
    def __init__(self, world: World, stream_port: int, faults: Faults) -> None:
        self._world = world
        self._faults = faults
        self.streams = Streams()
        self._calls = Calls(world, stream_port, faults, self._map_loaded)

    def protocol(self) -> CallProtocol:
        return CallProtocol(self._answer, self._faults.garbage)

    def _answer(self, method: str, arguments: list[Any], reply: Callable[[Any], None]) -> None:
        if self._faults.hung or "silent" in self._faults.values:
            return
        if method == "tick_cue" and self._faults.fails(method):
            reply(failed("tick_cue failed, as this server was told to"))
        elif method == "tick_cue":
            if self.streams.awaited:
                self._waiting = asyncio.get_running_loop().create_task(self._tick_when_heard(reply))
            else:
                self._tick(reply)
        else:
            answer = self._calls.answer(method, arguments)
            if method == "get_sensor_token" and answer[0][0] == 1:
                self.streams.awaited.add(int(arguments[1]))
            if method == "apply_batch" and arguments[2:] == [True]:
                self._tick()  # the client asked for a frame after the commands
            reply(answer)

    async def _tick_when_heard(self, reply: Callable[[Any], None]) -> None:
        """Tick once those have connected who are about to listen, or else they would miss this frame for good."""
        for _ in range(_CONNECT_TRIES):
            if not self.streams.awaited:
                break
            await asyncio.sleep(_CONNECT_S)
        self.streams.awaited.clear()
        self._tick(reply)

    def _tick(self, reply: Callable[[Any], None] = lambda _: None) -> None:
        self._faults.count_tick()
        if self._faults.hung:
            return
        if self._faults.tick_delay_s:
            time.sleep(self._faults.tick_delay_s)
        tick(self._world)
        # All at once, which wakes the client only once; what it need not wait for comes while it thinks.
        self._send_sensors()
        self.streams.send(WORLD_STREAM_NUMBER, self._world.state_message())
        reply(result(self._world.frame))
        let_traffic_drive(self._world)

    def _send_sensors(self) -> None:
        for actor in self._world.actors.values():
            if not actor.stream or not self.streams.listened(actor.id):
                continue
            if actor.camera is not None and self._faults.drops_image():
                continue
            message = sensor_message(self._world, actor)
            if message is not None:
                self.streams.send(actor.id, message)

    def _map_loaded(self) -> None:
        """Show the new episode, a little after the client has its answer, as it waits for such a frame."""
        asyncio.get_running_loop().call_later(_SETTLE_S, self._tick)

    async def keep_time(self) -> None:
        """Tick by the wall's clock while no client does."""
        while True:
            await asyncio.sleep(self._world.delta_s)
            if not self._world.synchronous and not self._faults.hung:
                self._tick()


def serve(
    port: int, map_name: str, faults: Faults | None = None, *, started: Callable[[str, int], None] = lambda *_: None
) -> None:
    """Serve on 127.0.0.1 until SIGTERM or SIGINT.

    Args:
        port: of the calls; streams are on the next. 0 takes two free ones.
        map_name: a packaged map or an OpenDRIVE file.
        faults: that the server shall have.
        started: called with the map's name and the port when clients may come.

    Raises:
        ConfigError: there is no such map.
        SimulationError: the map cannot be used, or a port is taken.
    """
    faults = faults or Faults()
    town = load_town(*find_map(map_name))
    time.sleep(faults.start_delay_s)
    asyncio.run(_serve(port, town, faults, started))


async def _serve(port: int, town: Town, faults: Faults, started: Callable[[str, int], None]) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    call_socket, stream_socket = _bind(port)
    port = call_socket.getsockname()[1]
    server = _Server(World(town, port + 1), port + 1, faults)
    listeners = [
        await loop.create_server(server.streams.protocol, sock=stream_socket),
        await loop.create_server(server.protocol, sock=call_socket),
    ]
    clock = asyncio.create_task(server.keep_time())
    started(town.name, port)
    try:
        await asyncio.wait({clock, asyncio.create_task(ended.wait())}, return_when=asyncio.FIRST_COMPLETED)
        if clock.done():
            await clock  # raises what ended it
    finally:
        clock.cancel()
        for listener in listeners:
            listener.close()


def _bind(port: int) -> tuple[socket.socket, socket.socket]:
    """Return two bound sockets on neighbouring ports.

    Raises:
        SimulationError: one of the ports is taken.
    """
    for _ in range(_FREE_PORT_TRIES):
        wanted = port
        try:
            first = socket.create_server((HOST, port))
            wanted = first.getsockname()[1] + 1
            try:
                return first, socket.create_server((HOST, wanted))
            except BaseException:
                first.close()
                raise
        except (OSError, OverflowError) as error:
            if port:
                raise SimulationError(
                    f"port {wanted} of {HOST} cannot be used ({getattr(error, 'strerror', error)}); the server needs "
                    "two neighbouring free ports: name another with --port, or 0 for any"
                ) from None
    raise SimulationError(f"no two neighbouring free ports were found on {HOST}")
