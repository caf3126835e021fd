"""Routes and rewards on real maps, in the process that has the client's map library."""

import collections
import math

import numpy as np
import pytest

from mcnn_ray.carla.lite.maps import find_map
from mcnn_ray.carla.reward import Vehicle, ending, lane_reward, strict_ending, strict_town_reward
from mcnn_ray.carla.routes import Router
from mcnn_ray.carla.scenarios import SCENARIOS

GOAL = SCENARIOS["town"].goal


def load(name):
    import carla

    return carla.Map(*find_map(str(name)))


def shortest_by_waypoints(road_map, start):
    """Metres to the goal along the map's own waypoints, breadth first, 2 m at a time."""
    import carla

    goal = road_map.get_waypoint(carla.Location(*GOAL))
    seen, waiting = set(), collections.deque([(start, 0.0)])
    while waiting:
        at, metres = waiting.popleft()
        if (at.road_id, at.lane_id) == (goal.road_id, goal.lane_id) and abs(at.s - goal.s) <= 1.1:
            return metres
        for way in at.next(2.0):
            key = way.road_id, way.lane_id, round(way.s)
            if key not in seen:
                seen.add(key)
                waiting.append((way, metres + 2.0))
    return math.inf


def routes(name, count):
    """Of routes from some places: longest step, least distance from the goal, length to it, and that by waypoints."""
    road_map = load(name)
    router = Router(road_map, GOAL)
    starts = [point for point, _ in road_map.get_topology() if not point.is_junction]
    found = []
    for start in starts[:: max(1, len(starts) // count)][:count]:
        pose = start.transform
        route = router.plan(pose.location.x, pose.location.y, pose.location.z, pose.rotation.yaw)
        points = route.poses_R5[:, :3]
        steps = np.linalg.norm(np.diff(points, axis=0), axis=1)
        away = np.linalg.norm(points - router.goal, axis=1)
        first = int(np.flatnonzero(away < 0.5)[0]) if (away < 0.5).any() else -1
        found.append((steps.max(), away.min(), steps[:first].sum(), shortest_by_waypoints(road_map, start)))
    return found


def test_routes_are_unbroken_and_as_short_as_the_maps_own_waypoints_allow(drive):
    for longest_step, nearest, length, shortest in drive(routes, "SmallTown", 12):
        assert longest_step < 2.0 and nearest < 0.5
        assert length == pytest.approx(shortest, rel=0.03, abs=8.0)


def test_routes_of_carlas_town03_reach_d4rls_goal(drive, shared_data):
    found = drive(routes, shared_data / "maps" / "Town03.xodr", 12)
    reached = [entry for entry in found if math.isfinite(entry[3])]
    assert len(reached) >= 6
    for longest_step, nearest, length, shortest in reached:
        assert longest_step < 2.5 and nearest < 0.5
        assert length == pytest.approx(shortest, rel=0.06, abs=12.0)


def vehicle(x=5.0, y=0.0, yaw=-90.0, velocity=(0.0, -6.0), number=1):
    return Vehicle(number, (x, y, 0.0, 0.0, yaw, 0.0), velocity, (1.85, 0.9, 0.8))


def rewards_at_start(name):
    """Lane rewards at D4RL's start, by velocity; and road, lane and heading there."""
    import carla

    road_map = load(name)
    here = road_map.get_waypoint(carla.Location(5.0, 0.0, 0.1))
    velocities = [(0.0, -3.0), (0.0, -30.0), (0.0, 3.0), (0.5, 0.0), (0.5, -4.0), (0.0, 0.0)]
    found = [lane_reward(road_map, here, vehicle(velocity=velocity)) for velocity in velocities]
    return found, (here.road_id, here.lane_id, here.transform.rotation.yaw)


@pytest.mark.parametrize("name", ["HighwayLoop", "maps/Town04.xodr"])
def test_lane_rewards_at_d4rls_start_are_d4rls(drive, name, request):
    path = request.getfixturevalue("shared_data") / name if name.endswith(".xodr") else name
    found, (road, lane, yaw) = drive(rewards_at_start, path)
    assert (road, lane) == (47, -1) and abs((yaw + 90.0 + 180.0) % 360.0 - 180.0) < 1.0
    assert found == pytest.approx([3.0, 5.0, -3.0, -2.5, 1.5, 0.0], abs=0.15)  # v_s - 5 v_perp, within 5


def endings():
    import carla

    road_map = load("HighwayLoop")

    def told(car, others=(), speed_before=0.0, any_lane=False):
        place = carla.Location(*car.pose[:3])
        here = road_map.get_waypoint(place)
        on_road = road_map.get_waypoint(place, project_to_road=False) is not None
        return ending(here, on_road, car, speed_before, others, any_lane), strict_ending(here)

    return {
        "in lane": told(vehicle()),
        "next lane": told(vehicle(x=8.5)),
        "next lane, any": told(vehicle(x=8.5), any_lane=True)[0],
        "on the median": told(vehicle(x=1.5)),
        "turned round": told(vehicle(yaw=90.0)),
        "bumper to bumper": told(vehicle(), [vehicle(y=-3.75)])[0],
        "a metre between": told(vehicle(), [vehicle(y=-4.7)])[0],
        "a metre between, fast": told(vehicle(), [vehicle(y=-4.7)], speed_before=25.0)[0],
        "beside": told(vehicle(), [vehicle(x=8.5)])[0],
    }


def test_endings_are_told_apart_and_strict_ones_are_d4rls(drive):
    assert drive(endings) == {
        "in lane": ("", ""),
        "next lane": ("lane", "lane"),
        "next lane, any": "",
        "on the median": ("off road", ""),
        "turned round": ("wrong way", ""),
        "bumper to bumper": "vehicle",
        "a metre between": "",
        "a metre between, fast": "vehicle",
        "beside": "",
    }


def strict_town():
    import carla

    road_map = load("SmallTown")
    here = next(point for point, _ in road_map.get_topology() if not point.is_junction).next(20.0)[0]
    start = here.previous(19.0)[0].transform.location
    ahead = here.transform.get_forward_vector()
    place = here.transform.location
    car = vehicle(place.x, place.y, here.transform.rotation.yaw, (4.0 * ahead.x, 4.0 * ahead.y))
    key = here.road_id, here.section_id, here.lane_id
    assert isinstance(start, carla.Location)
    return strict_town_reward({key: (start.x, start.y)}, here, car), strict_town_reward({}, here, car)


def test_strict_town_pays_for_the_way_back_to_where_the_road_began(drive):
    towards, unknown = drive(strict_town)
    assert towards == pytest.approx(-4.0, abs=0.05)
    assert unknown == 0.0
