"""What clients do to actors, and what traffic makes of it, without a server in between."""

import math

import numpy as np
import pytest

from mcnn_ray.carla.lite.maps import find_map
from mcnn_ray.carla.lite.motion import let_traffic_drive, tick
from mcnn_ray.carla.lite.sensors import sensor_message
from mcnn_ray.carla.lite.town import load_town
from mcnn_ray.carla.lite.world import World


@pytest.fixture(scope="module")
def towns():
    return {name: load_town(*find_map(name)) for name in ("SmallTown", "HighwayLoop")}


@pytest.fixture(params=["SmallTown", "HighwayLoop"])
def world(towns, request):
    return World(towns[request.param], 1)


def on_lane(world, segment, metres):
    lanes = world.town.lanes
    x, y, z, pitch, yaw = lanes.poses_N5[lanes.samples(segment)][int(metres / lanes.spacing(segment))].tolist()
    return x, y, z, math.degrees(pitch), math.degrees(yaw), 0.0


def longest(world):
    return int(np.argmax(world.town.lanes.length_S))


def spawn(world, pose, role="autopilot", **attributes):
    listed = [["role_name", 0, role], *([name, 0, value] for name, value in attributes.items())]
    return world.spawn([0, "vehicle.tesla.model3", listed], pose)


def frames(world, count):
    for _ in range(count):
        tick(world)
        let_traffic_drive(world)


def speed_of(world, actor):
    return float(np.linalg.norm(world.motions[actor.row, 6:9]))


@pytest.mark.parametrize("delta_s", [0.001, 0.05, 0.3, 9.9])
def test_traffic_drives_at_any_step_and_speed(world, delta_s):
    cars = [spawn(world, world.town.spawn_points[k]) for k in (0, len(world.town.spawn_points) // 2)]
    world.settings[2] = [True, delta_s]
    for speed in (0.0, 8.0, 1000.0):
        for car in cars:
            world.set_velocity(car.id, (speed, speed, 0.0))
        frames(world, 10)
        assert np.isfinite(world.motions).all()


def test_traffic_passes_chains_of_the_shortest_segments(shared_data):
    """CARLA's Town04 has junctions of segments of millimetres: 501 leads into some of 0.5 m together."""
    town = load_town("Town04", (shared_data / "maps" / "Town04.xodr").read_text())
    for metres in range(1, int(town.lanes.length_S[501]), 6):
        world = World(town, 1)
        car = spawn(world, on_lane(world, 501, metres))
        start = world.motions[car.row, :3].copy()
        frames(world, 600)
        assert np.linalg.norm(world.motions[car.row, :3] - start) > 50.0  # it waits for nobody, nor for itself


@pytest.mark.parametrize("phase", range(4))
def test_traffic_sees_a_car_that_is_put_before_it_at_once(world, phase):
    segment = longest(world)
    driven = spawn(world, on_lane(world, segment, 5.0))
    frames(world, 80 + phase)
    own = spawn(world, on_lane(world, segment, float(world.town.lanes.length_S[segment]) - 5.0), role="hero")
    x, y, z, pitch, yaw, roll = world.world_pose(driven)
    between = driven.blueprint.extent[0] + own.blueprint.extent[0] + 0.6
    ahead = (x + between * math.cos(math.radians(yaw)), y + between * math.sin(math.radians(yaw)), z, pitch, yaw, roll)
    world.place(own.id, ahead)
    world.freeze(own.id, True)
    frames(world, 40)
    gap = math.dist(world.world_pose(driven)[:2], ahead[:2]) - (between - 0.6)
    assert gap > 0.2


def test_moved_vehicle_is_told_where_it_was_put_and_drives_on_from_there(world):
    car = spawn(world, on_lane(world, longest(world), 5.0))
    frames(world, 10)
    there = world.town.spawn_points[-1]
    world.place(car.id, there)
    told = world.motions[car.row, :6].copy()
    assert math.dist(told[:2], there[:2]) < 1.0
    frames(world, 1)
    tick(world)
    assert 0 < math.dist(world.motions[car.row, :2], told[:2]) < 0.2


def test_velocity_counts_along_the_heading_that_a_driven_vehicle_has_now(towns):
    world = World(towns["SmallTown"], 1)
    car = spawn(world, world.town.spawn_points[0])
    spawned = car.pose[4]
    for _ in range(2000):
        frames(world, 1)
        yaw = float(world.motions[car.row, 4])
        if 60 < abs((yaw - spawned + 180) % 360 - 180) < 120:
            break
    else:
        pytest.fail("it never turned")
    world.set_velocity(car.id, (5 * math.cos(math.radians(yaw)), 5 * math.sin(math.radians(yaw)), 0.0))
    assert world.traffic.drivers[car.id].speed == pytest.approx(5.0, abs=0.01)


def test_frozen_car_stands_and_tells_no_speed(world):
    car = spawn(world, on_lane(world, longest(world), 5.0), role="hero")
    heading = math.radians(car.pose[4])
    world.set_velocity(car.id, (5 * math.cos(heading), 5 * math.sin(heading), 0.0))
    frames(world, 5)
    assert speed_of(world, car) > 4.0
    world.freeze(car.id, True)
    before = world.motions[car.row, :6].copy()
    frames(world, 5)
    assert speed_of(world, car) == 0.0
    assert np.array_equal(world.motions[car.row, :6], before)


def test_cameras_see_from_whatever_they_are_attached_to(world):
    looks = [["image_size_x", 1, "16"], ["image_size_y", 1, "12"], ["fov", 2, "60"]]
    car = spawn(world, on_lane(world, longest(world), 5.0))
    above = (0.0, 0.0, 2.0, 0.0, 0.0, 0.0)
    parent = world.spectator.id
    for _ in range(2):  # on the spectator, and on that camera
        parent = world.spawn([0, "sensor.camera.rgb", looks], above, parent).id
    on_car = world.spawn([0, "sensor.camera.rgb", looks], above, car.id)
    frames(world, 1)
    for number in (parent, on_car.id):
        assert len(sensor_message(world, world.actors[number])) > 16 * 12 * 4
    assert world.destroy(car.id)
    assert on_car.id not in world.actors


def test_vehicles_of_any_number_of_colours_follow_each_other(world):
    first = spawn(world, on_lane(world, longest(world), 5.0), color="1,2,3")
    for shade in range(300):
        other = spawn(world, world.town.spawn_points[-1], color=f"{shade % 250},9,{shade // 250}")
        world.destroy(other.id)
    assert first.id in world.vehicles.ids
    frames(world, 2)
