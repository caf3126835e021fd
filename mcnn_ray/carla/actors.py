"""The actors of episodes on a server: the car with its camera, which stay, and the vehicles that are new each time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mcnn_ray.carla.connection import Connection, Images
from mcnn_ray.carla.reward import Vehicle
from mcnn_ray.carla.scenarios import CAMERA, VIEWER, CameraKind, Pose, Scenario
from mcnn_ray.carla.starts import car_blueprint, vehicle_blueprints, vehicle_starts
from mcnn_ray.errors import ServerError

__all__ = ["Actors"]

_NOON_DEG = 90.0
_GAP_M, _SLOWER_PERCENT = 2.0, 30.0  # what the traffic manager keeps, as D4RL sets it

Extent = tuple[float, float, float]


class Actors:
    """A car that is driven, its cameras, and vehicles that the server drives.

    Args:
        server: whose world they are in.
        scenario: the task.
        start: where the car is spawned.
        watched: mount a second camera, behind the car.

    Raises:
        ServerError: they cannot be spawned, or a camera sends nothing.
    """

    def __init__(self, server: Connection, scenario: Scenario, start: Pose, watched: bool) -> None:
        self._server, self._scenario = server, scenario
        self._vehicles: dict[int, Extent] = {}
        # Kept beyond the connection: the client warns of sensors that become garbage while a dead server has them.
        self._cameras: list[Any] = []
        with server.calling("spawning the car"):
            server.world.set_weather(server.carla.WeatherParameters(sun_altitude_angle=_NOON_DEG))
            library = server.world.get_blueprint_library()
            self._car = server.world.spawn_actor(car_blueprint(library), self._transform(start))
            self._car_extent = _extent(self._car)
        self._images = self._mount(CAMERA)
        self._views = self._mount(VIEWER) if watched else None

    def place_car(self, pose: Pose) -> None:
        """Put the car somewhere, at rest."""
        carla = self._server.carla
        with self._server.calling("placing the car"):
            self._car.set_transform(self._transform(pose))
            self._car.set_target_velocity(carla.Vector3D())
            self._car.set_target_angular_velocity(carla.Vector3D())
            self._car.apply_control(carla.VehicleControl())

    def control_car(self, push: float, steer: float) -> None:
        """Set throttle, or brake below 0, and steering, in [-1, 1]."""
        control = self._server.carla.VehicleControl(throttle=max(push, 0.0), brake=max(-push, 0.0), steer=steer)
        with self._server.calling("driving the car"):
            self._car.apply_control(control)

    def clear_traffic(self) -> None:
        """Remove all vehicles but the car."""
        destroy = self._server.carla.command.DestroyActor
        with self._server.calling("removing vehicles"):
            self._server.client.apply_batch_sync([destroy(number) for number in self._vehicles], False)
        self._vehicles = {}

    def start_traffic(self, start: Pose, rng: np.random.Generator, strict: bool, manager_port: int) -> None:
        """Spawn vehicles, which begin to drive.

        Args:
            start: of the car.
            rng: draws their places, kinds and colours, and the seed of CARLA's traffic manager.
            strict: as D4RL does.
            manager_port: where the traffic manager may listen; the lite server does without one.

        Raises:
            ServerError: none could be spawned; of some that find no room the others are left, as with D4RL.
        """
        server, command = self._server, self._server.carla.command
        with server.calling("spawning vehicles"):
            poses = vehicle_starts(self._scenario, server.map, rng, strict, start)
            kinds = vehicle_blueprints(server.world.get_blueprint_library(), len(poses), rng)
            seed = int(rng.integers(2**31))
            spawns = [command.SpawnActor(kind, self._transform(pose)) for kind, pose in zip(kinds, poses, strict=True)]
            if not server.lite:
                manager = server.client.get_trafficmanager(manager_port)
                # In asynchronous mode, the default, it ends this process when the server dies.
                manager.set_synchronous_mode(True)
                manager.set_random_device_seed(seed)
                manager.set_global_distance_to_leading_vehicle(_GAP_M)
                manager.global_percentage_speed_difference(_SLOWER_PERCENT)
                drive = command.SetAutopilot(command.FutureActor, True, manager_port)
                spawns = [spawn.then(drive) for spawn in spawns]
            answers = server.client.apply_batch_sync(spawns, False)
            actors = server.world.get_actors([answer.actor_id for answer in answers if not answer.error])
            self._vehicles = {actor.id: _extent(actor) for actor in actors}
        if not self._vehicles:
            raise ServerError(f"the server spawned none of {len(spawns)} vehicles: {answers[0].error}; start it again")

    def look(self) -> tuple[Vehicle, list[Vehicle], npt.NDArray[np.uint8]]:
        """Return the car, the vehicles, and the camera's (height, width, 3) RGB image, all of the last tick.

        Raises:
            ServerError: one of them is missing.
        """
        car = self._seen(self._car.id, self._car_extent)
        others = [self._seen(number, extent) for number, extent in self._vehicles.items()]
        return car, others, self._server.image(self._images)

    def view(self) -> npt.NDArray[np.uint8] | None:
        """Return the (height, width, 3) RGB image of the camera behind the car, of the last tick; None without one.

        Raises:
            ServerError: it is missing.
        """
        return None if self._views is None else self._server.image(self._views)

    def _mount(self, kind: CameraKind) -> Images:
        server = self._server
        with server.calling("mounting a camera"):
            camera = server.world.get_blueprint_library().find("sensor.camera.rgb")
            for name, value in (("image_size_x", kind.width), ("image_size_y", kind.height), ("fov", kind.fov_deg)):
                camera.set_attribute(name, str(value))
            self._cameras.append(server.world.spawn_actor(camera, self._transform(kind.mount), attach_to=self._car))
        return server.mount_camera(self._cameras[-1])

    def _seen(self, number: int, extent: Extent) -> Vehicle:
        state = self._server.snapshot.find(number)
        if state is None:
            raise ServerError(f"the server has lost vehicle {number} of the episode; start it again")
        transform, velocity = state.get_transform(), state.get_velocity()
        place, turn = transform.location, transform.rotation
        pose = (place.x, place.y, place.z, turn.pitch, turn.yaw, turn.roll)
        return Vehicle(number, pose, (velocity.x, velocity.y), extent)

    def _transform(self, pose: Pose) -> Any:
        carla = self._server.carla
        return carla.Transform(carla.Location(*pose[:3]), carla.Rotation(*pose[3:]))


def _extent(actor: Any) -> Extent:
    extent = actor.bounding_box.extent
    return extent.x, extent.y, extent.z
