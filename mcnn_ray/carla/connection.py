"""A connection to one CARLA server: its world in synchronous mode, and data of the frame that was asked for.

The `carla` client can end the process that imports it, and some of its calls keep all threads waiting: it is imported
here, when a connection is made, so only in processes that drive.
"""

from __future__ import annotations

import contextlib
import queue
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mcnn_ray.carla.lite.maps import MAPS_PREFIX
from mcnn_ray.errors import ConfigError, ServerError, SimulationError

__all__ = ["DELTA_S", "Address", "Connection", "Images"]

DELTA_S = 0.05  # of a step
_WARM_UP_TICKS = 20  # until a camera's first image: its stream begins some time after it is asked for
_WARM_UP_S = 0.25  # for each
_LEAVING_S = 1.0  # for each call that tidies up, which a dead server does not answer

Images = queue.SimpleQueue[Any]  # of a camera, as the client receives them


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens.

    Attributes:
        host: name or number.
        port: of its calls; streams are on the next.
        traffic_manager_port: where the client's traffic manager may listen, one for each client.
    """

    host: str
    port: int
    traffic_manager_port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read `HOST:PORT` or `HOST:PORT:TRAFFIC_MANAGER_PORT`; the latter is PORT + 3 when left out.

        Raises:
            ConfigError: it is something else.
        """
        host, *ports = text.split(":")
        if host and len(ports) in (1, 2) and all(port.isdecimal() and 0 < int(port) < 65536 for port in ports):
            return cls(host, int(ports[0]), int(ports[1]) if len(ports) == 2 else int(ports[0]) + 3)
        raise ConfigError(f"'{text}' is no address of a CARLA server; write HOST:PORT, e.g. 127.0.0.1:2000")

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Connection:
    """A client of a server whose world it holds in synchronous mode until it is closed, or garbage.

    Vehicles and sensors that someone left in the world are removed.

    Args:
        address: of the server.
        maps: last parts of the names of maps that will do.
        timeout_s: for each answer of the server.

    Attributes:
        carla: the client's module.
        client: a `carla.Client`.
        world: a `carla.World`.
        map: a `carla.Map`.
        map_name: in full, as the server has it.
        version: of server and client.
        lite: whether the server is this package's own.
        snapshot: the `carla.WorldSnapshot` of the last tick.

    Raises:
        SimulationError: the client is not installed, or the server has another version or map.
        ServerError: it does not answer.
    """

    def __init__(self, address: Address, maps: Sequence[str], timeout_s: float) -> None:
        try:
            import carla
        except ImportError as error:
            raise SimulationError(
                f"the carla client cannot be imported ({error}); pip install carla==0.9.16"
            ) from error
        self.carla: Any = carla
        self._address, self._timeout_s = address, timeout_s
        with self.calling("connecting"):
            self.client: Any = carla.Client(address.host, address.port)
            self.client.set_timeout(timeout_s)
            self.version = self._agreed_version()
            self.world: Any = self.client.get_world()
            self.map: Any = self.world.get_map()
        self.map_name = str(self.map.name)
        self.lite = self.map_name.startswith(MAPS_PREFIX)
        if self.map_name.rsplit("/", 1)[-1] not in maps:
            raise SimulationError(
                f"the server {address} shows the map {self.map_name}, not {' or '.join(maps)}; start one with "
                f"{'mcnn carla serve --lite --map ' + maps[0] if self.lite else 'that map'}"
            )
        self._cameras: list[Any] = []
        self._finalize = weakref.finalize(self, _leave, carla, self.client, self.world, self._cameras, timeout_s)
        with self.calling("taking over its clock"):
            settings = self.world.get_settings()
            settings.synchronous_mode, settings.fixed_delta_seconds = True, DELTA_S
            settings.no_rendering_mode = False
            self._frame = int(self.world.apply_settings(settings, timeout_s))
            _remove_actors(carla, self.client, self.world)
        self.snapshot: Any = None

    def _agreed_version(self) -> str:
        # Other versions only earn a warning from the client, and abort the process later.
        own, found = str(self.client.get_client_version()), str(self.client.get_server_version())
        if own != found:
            raise SimulationError(
                f"the server {self._address} is CARLA {found} and the carla client {own}; they must be the same: start "
                f"a server {own}, or pip install carla=={found}"
            )
        return own

    @contextlib.contextmanager
    def calling(self, doing: str) -> Iterator[None]:
        """Tell what the client raises in here as the server's failure.

        Args:
            doing: what is done in here, for messages.

        Raises:
            ServerError: the client raised `RuntimeError`, as it does for all failures.
        """
        try:
            yield
        except RuntimeError as error:
            cause = " ".join(str(error).split())
            raise ServerError(f"CARLA server {self._address} failed at {doing}: {cause}; start it again") from error

    def mount_camera(self, camera: Any, ticks: int = _WARM_UP_TICKS) -> Images:
        """Receive a camera's images from now on.

        Args:
            camera: an actor.
            ticks: at most until its first image.

        Returns:
            Where they come in; `image` takes them out.

        Raises:
            ServerError: none comes.
        """
        images: Images = queue.SimpleQueue()
        with self.calling("listening to a camera"):
            camera.listen(images.put)
            self._cameras.append(camera)
        for _ in range(ticks):
            self.tick()
            with contextlib.suppress(queue.Empty):
                images.get(timeout=_WARM_UP_S)
                return images
        raise ServerError(f"CARLA server {self._address} sent no image in {ticks} frames; start it again")

    def tick(self) -> None:
        """Move the world on by one frame, and take its snapshot.

        Raises:
            ServerError: the server does not answer, or its frames do not advance.
        """
        with self.calling("a tick"):
            frame = int(self.world.tick(self._timeout_s))
            self.snapshot = self.world.get_snapshot()
        if frame <= self._frame or self.snapshot.frame != frame:
            raise ServerError(
                f"CARLA server {self._address}: frame {frame}, with the state of frame {self.snapshot.frame}, came "
                f"after frame {self._frame}; another client drives it, or it has begun anew"
            )
        self._frame = frame

    def image(self, images: Images) -> npt.NDArray[np.uint8]:
        """Return a camera's image of the last tick.

        Args:
            images: what `mount_camera` gave for it.

        Returns:
            (height, width, 3) RGB.

        Raises:
            ServerError: it does not come.
        """
        image = None
        while image is None or image.frame < self._frame:
            try:
                image = images.get(timeout=self._timeout_s)
            except queue.Empty:
                raise ServerError(
                    f"CARLA server {self._address} sent no image of frame {self._frame} in {self._timeout_s:g} s"
                ) from None
        if image.frame > self._frame:
            raise ServerError(
                f"CARLA server {self._address} sent an image of frame {image.frame} and none of frame {self._frame}"
            )
        bgra = np.frombuffer(image.raw_data, dtype=np.uint8).reshape(image.height, image.width, 4)
        return bgra[:, :, 2::-1]

    def close(self) -> None:
        """Remove all vehicles and sensors and let the world run by itself, as far as the server still answers."""
        self._finalize()


def _remove_actors(carla: Any, client: Any, world: Any) -> None:
    actors = world.get_actors()
    old = [*actors.filter("sensor.*"), *actors.filter("vehicle.*")]
    if old:
        client.apply_batch_sync([carla.command.DestroyActor(actor) for actor in old], False)


def _leave(carla: Any, client: Any, world: Any, cameras: list[Any], timeout_s: float) -> None:
    with contextlib.suppress(RuntimeError):
        client.set_timeout(min(timeout_s, _LEAVING_S))
        client.get_server_version()  # unlike others, this call lets other threads run while it waits for a dead server
        for camera in cameras:
            camera.stop()
        _remove_actors(carla, client, world)
        settings = world.get_settings()
        settings.synchronous_mode, settings.fixed_delta_seconds = False, None
        world.apply_settings(settings, min(timeout_s, _LEAVING_S))
