"""What D4RL's two driving tasks fix (d4rl/carla of D4RL, commit 89141a6): maps, starts, horizons, camera, traffic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mcnn_ray.carla.lite.geometry import Pose

__all__ = ["CAMERA", "CAR", "IMAGE_SIDE", "SCENARIOS", "VEHICLES", "VIEWER", "CameraKind", "Pose", "Scenario"]

CAR = "vehicle.audi.a2"
VEHICLES = 20  # beside the car
IMAGE_SIDE = 48  # pixels


@dataclass(frozen=True, slots=True)
class CameraKind:
    """A camera on the car.

    Attributes:
        width: pixels.
        height: pixels.
        fov_deg: horizontal field of view.
        mount: its pose in the car's frame.
    """

    width: int
    height: int
    fov_deg: int
    mount: Pose


CAMERA = CameraKind(IMAGE_SIDE, IMAGE_SIDE, 48, (1.6, 0.0, 1.7, 0.0, 0.0, 0.0))
VIEWER = CameraKind(480, 272, 70, (-7.0, 0.0, 3.5, -12.0, 0.0, 0.0))  # from behind, for people to look at


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A driving task.

    Attributes:
        name: `lane` or `town`.
        town: D4RL's map.
        lite_map: the lite server's own map for it, which has what the constants name.
        horizon: steps of an episode.
        start: of the car; None draws one of the map's spawn points.
        vehicles_road: number of the road that the vehicles start on; None draws spawn points.
        vehicles_lanes: of that road.
        vehicles_length_m: of that road, where they start.
        goal: place to reach, metres; None where there is none.
    """

    name: Literal["lane", "town"]
    town: str
    lite_map: str
    horizon: int
    start: Pose | None = None
    vehicles_road: int | None = None
    vehicles_lanes: tuple[int, ...] = ()
    vehicles_length_m: float = 0.0
    goal: tuple[float, float, float] | None = None


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            name="lane",
            town="Town04",
            lite_map="HighwayLoop",
            horizon=250,
            start=(5.0, 0.0, 0.1, 0.0, -90.0, 0.0),
            vehicles_road=47,
            vehicles_lanes=(-1, -2, -3, -4),
            vehicles_length_m=117.0,
        ),
        Scenario(
            name="town",
            town="Town03",
            lite_map="SmallTown",
            horizon=1000,
            goal=(-13.473097, 134.311234, -0.010433),
        ),
    )
}
