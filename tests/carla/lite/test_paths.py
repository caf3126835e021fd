"""How traffic moves along lanes between two looks around."""

import carla
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcnn_ray.carla.lite.lanes import read_lanes
from mcnn_ray.carla.lite.maps import find_map
from mcnn_ray.carla.lite.paths import Paths

DELTA_S = 0.05


@pytest.fixture(scope="module")
def lanes():
    return read_lanes(carla.Map(*find_map("SmallTown")))


def way_on(lanes, segment, count):
    route = [segment]
    while len(route) < count:
        ways = lanes.successors[route[-1]] if route[-1] >= 0 else []
        route.append(ways[0] if ways else -1)
    return route


@given(data=st.data(), frames=st.integers(1, 8))
def test_trip_equals_moving_one_frame_after_the_other(lanes, data, frames):
    vehicles = []
    for _ in range(data.draw(st.integers(1, 4))):
        segment = data.draw(st.integers(0, len(lanes.length_S) - 1))
        offset = data.draw(st.floats(0.0, 1.0, exclude_max=True)) * float(lanes.length_S[segment])
        vehicles.append((segment, offset, data.draw(st.floats(0.0, 20.0)), data.draw(st.floats(-20.0, 4.0))))
    routes = [way_on(lanes, segment, 8) for segment, *_ in vehicles]
    offsets, speeds, accelerations = zip(*[rest for _, *rest in vehicles], strict=True)
    trip = Paths(lanes).drive(routes, offsets, speeds, accelerations, frames=frames, delta_s=DELTA_S)
    for index, (route, offset, speed, acceleration) in enumerate(
        zip(routes, offsets, speeds, accelerations, strict=True)
    ):
        passed = 0
        for frame in range(1, frames + 1):
            speed = max(speed + acceleration * DELTA_S, 0.0)
            offset += speed * DELTA_S
            while offset >= lanes.length_S[route[passed]] and route[passed + 1] >= 0:
                offset -= float(lanes.length_S[route[passed]])
                passed += 1
            assert trip.speed_FD[frame, index] == pytest.approx(speed, abs=1e-9)
            at_an_end = min(abs(offset), abs(offset - lanes.length_S[route[passed]])) < 1e-6
            assert at_an_end or trip.passed_FD[frame, index] == passed
            assert at_an_end or trip.offset_FD[frame, index] == pytest.approx(offset, abs=1e-6)


@given(data=st.data())
def test_clients_are_told_the_velocity_that_moves_a_vehicle(lanes, data):
    segment = data.draw(st.sampled_from(np.flatnonzero(lanes.length_S > 4.0).tolist()))
    speed, acceleration = data.draw(st.floats(0.5, 8.0)), data.draw(st.floats(-2.0, 2.0))
    trip = Paths(lanes).drive([way_on(lanes, segment, 8)], [0.0], [speed], [acceleration], frames=4, delta_s=DELTA_S)
    motion_FM = trip.motion_FDM[:, 0]
    moved = np.diff(motion_FM[:, :3], axis=0) / DELTA_S
    # Samples are a metre apart, and a bend of a street has a radius of some metres.
    assert np.abs(moved - motion_FM[1:, 6:9]).max() < 0.1 * speed + 0.05
    assert np.linalg.norm(motion_FM[1:, 6:8], axis=-1) == pytest.approx(trip.speed_FD[1:, 0])
    assert np.linalg.norm(motion_FM[1:, 12:14], axis=-1) == pytest.approx(
        np.abs(np.diff(trip.speed_FD[:, 0])) / DELTA_S, abs=1e-9
    )


def test_places_between_samples_lie_between_them(lanes):
    paths = Paths(lanes)
    for segment in range(len(lanes.length_S)):
        first, spacing = int(lanes.first_S[segment]), lanes.spacing(segment)
        here, there = lanes.poses_N5[first], lanes.poses_N5[first + 1]
        assert paths.pose(np.array(segment), np.array(0.0)) == pytest.approx(here)
        assert paths.pose(np.array(segment), np.array(spacing / 4)) == pytest.approx(here + (there - here) / 4)
        last = lanes.poses_N5[lanes.samples(segment)][-1]
        assert paths.pose(np.array(segment), lanes.length_S[segment]) == pytest.approx(last)
