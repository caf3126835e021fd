"""The calls of CARLA 0.9.16's client that the lite server answers, each a few lines over the world.

A result travels as `[[1, value]]`, an error as `[[0, [message]]]`, nothing as `[[false]]`; the first argument of every
call says whether the client waits for it and is gone here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from mcnn_ray.carla.lite.blueprints import definitions
from mcnn_ray.carla.lite.dynamics import Controls
from mcnn_ray.carla.lite.faults import Faults
from mcnn_ray.carla.lite.geometry import Pose
from mcnn_ray.carla.lite.maps import MAPS_PREFIX, available_maps, find_map
from mcnn_ray.carla.lite.town import load_town
from mcnn_ray.carla.lite.wire import PROTOCOL_VERSION, stream_token
from mcnn_ray.carla.lite.world import World
from mcnn_ray.errors import ConfigError, McnnError, did_you_mean

__all__ = ["NOTHING", "WORLD_STREAM_NUMBER", "Calls", "failed", "result"]

NOTHING: list[Any] = [[False]]
WORLD_STREAM_NUMBER = 0  # actors have the others
_FARTHEST = 1e6  # metres, or m/s: what is beyond is a client's mistake
_GENERATED = "OpenDriveMap"


def result(value: Any) -> list[Any]:
    """Return a call's result as it travels."""
    return [[1, value]]


def failed(message: str) -> list[Any]:
    """Return a call's error as it travels."""
    return [[0, [message]]]


class Calls:
    """Answers calls.

    Args:
        world: they are about.
        stream_port: told to clients.
        faults: that the server has.
        loaded: called after a map was loaded.
    """

    def __init__(self, world: World, stream_port: int, faults: Faults, loaded: Callable[[], None]) -> None:
        self._world = world
        self._stream_port = stream_port
        self._faults = faults
        self._loaded = loaded
        self._own = world.town
        self._generated = ""  # the OpenDRIVE text that a client sent
        self._table: dict[str, Callable[..., list[Any]]] = {
            "version": lambda: result(faults.version(PROTOCOL_VERSION)),
            "get_episode_info": lambda: result([world.episode, [self._token(WORLD_STREAM_NUMBER)]]),
            "get_episode_settings": lambda: result(world.settings),
            "set_episode_settings": self._set_settings,
            "get_map_info": lambda: result([world.town.name, [_sent(pose) for pose in world.town.spawn_points]]),
            "get_map_data": lambda: result(world.town.opendrive),
            "get_required_files": lambda *_: result([]),
            "get_available_maps": lambda: result([MAPS_PREFIX + name for name in self._maps()]),
            "load_new_episode": self._load,
            "copy_opendrive_to_file": self._take_opendrive,
            "get_actor_definitions": lambda: result(definitions()),
            "get_actors_by_id": lambda numbers: result(
                [world.actors[number].told() for number in numbers if number in world.actors]
            ),
            "get_spectator": lambda: result(world.spectator.told()),
            "get_sensor_token": lambda number: result([self._token(int(number))]),
            "get_actor_bounding_box": lambda number: result(world.actors[number].blueprint.box),
            "spawn_actor": lambda description, pose: result(world.spawn(_description(description), _pose(pose)).told()),
            "spawn_actor_with_parent": lambda description, pose, parent, *_: result(
                world.spawn(_description(description), _pose(pose), int(parent)).told()
            ),
            "destroy_actor": lambda number: result(world.destroy(int(number))),
            "apply_batch": self._batch,
            "apply_control_to_vehicle": self._control,
            "set_actor_transform": self._place,
            "set_actor_location": self._move,
            "set_actor_target_velocity": self._set_velocity,
            "set_actor_simulate_physics": self._set_physics,
            "get_weather_parameters": lambda: result(world.weather),
            "set_weather_parameters": self._set_weather,
            "is_weather_enabled": lambda: result(True),
            "query_lights_state": lambda *_: result([]),
            "get_all_level_BBs": lambda *_: result([]),
            "get_environment_objects": lambda *_: result([]),
            "get_vehicle_light_states": lambda: result([]),
            "get_group_traffic_lights": lambda *_: result([]),
            "is_traffic_manager_running": lambda *_: result(False),
            "add_traffic_manager_running": lambda *_: result(True),
            "get_traffic_manager_running": lambda *_: result(["", 0]),
            "destroy_traffic_manager": lambda *_: result(True),
            **dict.fromkeys(_NO_EFFECT, lambda *_: NOTHING),
        }

    def answer(self, method: str, arguments: list[Any]) -> list[Any]:
        """Return the answer to a call, an error where the call or its arguments are not understood."""
        if self._faults.fails(method):
            return failed(f"{method} failed, as this server was told to")
        known = self._table.get(method)
        if known is None:
            return failed(f"the lite server does not know the call '{method}'")
        try:
            return known(*arguments[1:])
        except McnnError as error:
            return failed(str(error))
        except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError, struct.error) as error:
            return failed(f"{method}: arguments that cannot be used ({type(error).__name__}: {error})")

    def _token(self, stream: int) -> bytes:
        return stream_token(stream, self._stream_port)

    def _set_settings(self, settings: list[Any]) -> list[Any]:
        _, _, delta, *_ = settings
        if len(settings) != len(self._world.settings) or (len(delta) > 1 and not 0 <= float(delta[1]) < 10):
            raise ValueError("settings of another version, or a step beyond 10 s")
        self._world.settings = settings
        return result(self._world.frame)

    def _load(self, name: str, reset_settings: bool = True, *_: Any) -> list[Any]:
        name = name.rsplit("/", 1)[-1]
        # Clients load packaged maps and the one this server was started with; files of others are none of theirs.
        loaded = {town.name.rsplit("/", 1)[-1]: town for town in (self._own, self._world.town)}
        if name == _GENERATED and self._generated:
            town = load_town(name, self._generated)
            self._generated = ""
        elif not name or name in loaded:
            town = loaded.get(name, self._world.town)
        elif name in available_maps():
            town = load_town(*find_map(name))
        else:
            raise ConfigError(f"there is no map '{name}'; {did_you_mean(name, self._maps())}")
        self._faults.count_load()
        self._world.begin_episode(town, keep_settings=not reset_settings)
        self._loaded()
        return NOTHING

    def _maps(self) -> list[str]:
        return sorted({*available_maps(), self._own.name.rsplit("/", 1)[-1]})

    def _take_opendrive(self, text: str, *_: Any) -> list[Any]:
        self._generated = text
        return NOTHING

    def _control(self, number: int, control: list[Any]) -> list[Any]:
        throttle, steer, brake, hand_brake, reverse, manual, gear = control
        throttle, steer, brake = _finite(throttle, steer, brake)
        controls = Controls(throttle, steer, brake, bool(hand_brake), bool(reverse))
        self._world.control(number, controls, int(gear), bool(manual))
        return NOTHING

    def _place(self, number: int, pose: Any) -> list[Any]:
        self._world.place(number, _pose(pose))
        return NOTHING

    def _move(self, number: int, location: Any) -> list[Any]:
        x, y, z = _finite(*location)
        actor = self._world.actors[number]
        pose = self._world.world_pose(actor) if actor.autopilot else actor.pose
        self._world.place(number, (x, y, z, *pose[3:]))
        return NOTHING

    def _set_velocity(self, number: int, velocity: Any) -> list[Any]:
        x, y, z = _finite(*velocity)
        self._world.set_velocity(number, (x, y, z))
        return NOTHING

    def _set_physics(self, number: int, enabled: bool) -> list[Any]:
        self._world.freeze(number, not enabled)
        return NOTHING

    def _set_weather(self, weather: list[Any]) -> list[Any]:
        if len(weather) != len(self._world.weather):
            raise ValueError(f"{len(weather)} weather parameters instead of {len(self._world.weather)}")
        self._world.set_weather(_finite(*weather))
        return NOTHING

    def _batch(self, commands: list[Any], *_: Any) -> list[Any]:
        answers = []
        for command in commands:
            try:
                answers.append(self._command(command))
            except (TypeError, ValueError, IndexError) as error:
                answers.append(failed(f"a command that cannot be read ({error})"))
        return answers

    def _command(self, command: list[Any], spawned: int | None = None) -> list[Any]:
        """Carry out one command of a batch and return its own answer: the number of the actor, or an error.

        Args:
            command: its kind and its fields.
            spawned: the actor just spawned, which is meant where a command names actor 0.
        """
        ((kind, fields),) = command
        if kind == _SPAWN:
            return self._spawn_command(*fields)
        method = _COMMANDS.get(kind)
        if method is None:
            return failed(f"the lite server does not know the command of kind {kind}")
        number = spawned if spawned is not None and fields[0] == 0 else fields[0]
        answer = self.answer(method, [None, number, *fields[1:]])
        if answer == result(False):
            return failed(f"unable to destroy actor {number}: it does not exist")
        return answer if answer[0][0] == 0 and len(answer[0]) > 1 else result(number)

    def _spawn_command(
        self, description: Any, pose: Any, parent: list[Any], _attachment: int, _bone: str, then: list[Any]
    ) -> list[Any]:
        attached = [None, description, pose, *parent[1:]]
        answer = self.answer("spawn_actor_with_parent" if parent[0] else "spawn_actor", attached)
        if answer[0][0] == 0:
            return answer
        number = answer[0][1][0]
        for command in then:
            self._command(command, number)
        return result(number)


# A batch's commands by their kind, as far as they are calls too.
_SPAWN = 0
_COMMANDS = {
    1: "destroy_actor",
    2: "apply_control_to_vehicle",
    6: "set_actor_transform",
    8: "set_actor_target_velocity",
    9: "set_actor_target_angular_velocity",
    14: "set_actor_simulate_physics",
    15: "set_actor_enable_gravity",
    18: "set_vehicle_light_state",
    19: "set_actor_location",
}
# Calls without a meaning here, whose success a client may rely on.
_NO_EFFECT = (
    "set_actor_target_angular_velocity",
    "set_actor_enable_gravity",
    "set_actor_collisions",
    "set_actor_autopilot",
    "set_vehicle_light_state",
    "freeze_all_traffic_lights",
    "reset_all_traffic_lights",
    "draw_debug_shape",
    "update_lights_state",
)


def _finite(*values: Any) -> list[float]:
    numbers = [float(value) for value in values]
    if not all(abs(number) <= _FARTHEST for number in numbers):  # neither is NaN
        raise ValueError("a number is not finite, or beyond 1e6")
    return numbers


def _pose(transform: Any) -> Pose:
    location, rotation = transform
    x, y, z = _finite(*location)
    pitch, yaw, roll = _finite(*rotation)
    return x, y, z, pitch, yaw, roll


def _sent(pose: Pose) -> list[list[float]]:
    return [list(pose[:3]), list(pose[3:])]


def _description(value: Any) -> list[Any]:
    number, name, attributes = value
    return [int(number), str(name), [[str(key), int(kind), str(given)] for key, kind, given in attributes]]
