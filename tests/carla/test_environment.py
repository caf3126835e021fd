"""The driving tasks through the real client, against lite servers."""

import math
import re

import numpy as np
import pytest

from mcnn_ray.carla.connection import Address
from mcnn_ray.carla.environment import DrivingEnv
from mcnn_ray.carla.lite.geometry import boxes_overlap
from mcnn_ray.errors import ConfigError
from mcnn_ray.tasks.catalogue import CATALOGUE
from tests.carla import driving
from tests.carla.lite.processes import lite_server


@pytest.mark.parametrize("scenario", ["lane", "town"])
def test_an_episode_is_a_function_of_its_seed(drive, scenario, request):
    server = request.getfixturevalue("highway" if scenario == "lane" else "town")
    first, other, again, later = drive(driving.digests, scenario, server, [3, 4, 3, 3])
    assert first == again == later
    assert first != other


def test_observations_are_flat_images_in_0_to_1(drive, highway):
    shape, dtype, inside, same, image = drive(driving.observed, "lane", highway)
    assert (shape, dtype, inside, same) == ((6912,), "float32", True, True)
    sky, road = image[:8].reshape(-1, 3).mean(0), image[-8:].reshape(-1, 3).mean(0)
    assert sky[2] > sky[0] + 30  # red, green, blue in this order
    assert np.ptp(road) < 30 and road.mean() < sky.mean()


def test_view_from_behind_shows_the_car_and_leaves_the_episode_as_it_is(drive, highway):
    (unwatched,) = drive(driving.digests, "lane", highway, [3])
    watched, first, last = drive(driving.watched, "lane", highway, 3)
    assert watched == unwatched
    assert first.shape == last.shape == (272, 480, 3)
    assert not np.array_equal(first, last)
    beside, car = first[200:230, 100:130].reshape(-1, 3), first[200:230, 225:255].reshape(-1, 3)
    assert np.abs(beside.mean(0) - car.mean(0)).max() > 20


def test_starts_lie_around_d4rls_with_twenty_vehicles_apart(drive, highway):
    found = drive(driving.starts, "lane", highway, [0, 1, 2])
    assert len({car for car, _ in found}) == 3
    for (x, y, _, _, yaw, _), others in found:
        assert abs(x - 5.0) < 0.5 and abs(y) < 10.5 and abs(yaw + 90.0) < 3.5
        assert len(others) == 20
        assert all(-53.0 < pose[1] < 70.0 and 4.0 < pose[0] < 16.5 for pose, _ in others)
        boxes = [((x, y, 0.0, 0.0, yaw, 0.0), (1.85, 0.9, 0.8)), *others]
        assert not any(boxes_overlap(*a, *b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_strict_starts_are_d4rls(drive, highway):
    for (x, y, _, _, yaw, _), others in drive(driving.starts, "lane", highway, [0, 1], True):
        assert (x, y, yaw) == pytest.approx((5.0, 0.0, -90.0), abs=1e-3)
        assert 5 < len(others) <= 20  # of forty asked for those that found room


def test_actions_are_throttle_brake_and_steering(drive, highway):
    steps = drive(driving.driven, "lane", highway, 0, [[0.5, 0.0]] * 20 + [[-1.0, 0.0]] * 20)
    speeds = [math.hypot(*velocity) for _, velocity, *_ in steps]
    assert speeds[0] == 0.0 and speeds[20] > 1.0 and speeds[-1] == 0.0
    turned = {}
    for steer in (-0.2, 0.2):
        steps = drive(driving.driven, "lane", highway, 0, [[0.6, 0.0]] * 10 + [[0.6, steer]] * 8)
        turned[steer] = steps[-1][0][4] - steps[10][0][4]
    assert turned[0.2] > 3.0 and turned[-0.2] < -3.0  # CARLA's yaw grows to the right


def test_what_the_car_earns_is_its_speed_along_the_lane(drive, highway):
    steps = drive(driving.driven, "lane", highway, 0, [[0.4, 0.0]] * 15)
    for _, (vx, vy), reward, info in steps[5:]:
        assert not info["ending"]
        assert reward == pytest.approx(min(max(-vy - 5.0 * abs(vx), -5.0), 5.0), abs=0.02)  # the lane leads to -y


def test_leaving_the_road_costs_100_and_ends_but_not_so_for_d4rl(drive, highway):
    actions = [[0.5, -0.25]] * 120  # over the median, to the left
    *_, last = drive(driving.driven, "lane", highway, 0, actions)
    assert last[3]["ending"] == "off road" and -105.0 <= last[2] <= -95.0 and not last[3]["success"]
    strict = drive(driving.driven, "lane", highway, 0, actions[:60], True)
    left = [pose[0] for pose, *_ in strict]
    assert min(left) < 2.0 and not strict[-1][3]["ending"]  # the nearest lane is still the innermost one


def test_changing_the_lane_ends_the_episode(drive, highway):
    *_, last = drive(driving.driven, "lane", highway, 2, [[0.6, 0.2]] * 60)
    assert last[3]["ending"] == "lane" and last[2] < -90.0


def test_of_strict_episodes_only_the_lane_is_the_end(drive, highway):
    """D4RL's list of vehicles is of those before the first reset: who drives into others is not told."""
    lasts = [drive(driving.driven, "lane", highway, seed, [[0.6, 0.2]] * 60, True)[-1] for seed in (0, 1, 2, 3)]
    assert {info["ending"] for *_, info in lasts} == {"lane", ""}  # those that are not out of it stand before another


def test_touching_a_vehicle_costs_100_and_ends(drive, highway):
    found = drive(driving.crash, highway, range(6))
    crashes = [entry for entry in found if entry[0] == "vehicle"]
    assert len(crashes) >= 2
    for _, reward, nearest in crashes:
        assert reward < -90.0 and nearest < 6.5


def test_the_world_runs_by_itself_and_is_empty_after_closing(drive, highway):
    during, after = drive(driving.left_behind, highway)
    assert during == (True, 21)
    assert after == (False, 0)


def test_a_server_with_another_map_or_none_is_named(drive, town, monkeypatch):
    name, message, *_ = drive(driving.failing, town)
    assert name == "SimulationError"
    assert re.search("shows the map Lite/Maps/SmallTown, not HighwayLoop or Town04; .* --map HighwayLoop", message)
    monkeypatch.delenv("MCNN_CARLA_SERVER", raising=False)
    with pytest.raises(ConfigError, match="mcnn carla serve --lite --map HighwayLoop"):
        DrivingEnv("lane").reset(seed=0)


@pytest.mark.parametrize("text", ["", "localhost", ":2000", "localhost:x", "localhost:0", "h:1:2:3", "h:70000"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ConfigError, match="HOST:PORT"):
        Address.parse(text)


def test_addresses_name_host_and_ports():
    assert Address.parse("127.0.0.1:2000") == Address("127.0.0.1", 2000, 2003)
    assert Address.parse("127.0.0.1:2000:8000") == Address("127.0.0.1", 2000, 8000)


@pytest.mark.parametrize(
    ("fault", "said", "infrastructure"),
    [
        ("hang-in-tick:30", "a tick: time-out", True),
        ("crash-in-tick:30", "a tick: time-out", True),
        ("drop-frames:25", "sent no image of frame", True),
        ("error-replies:apply_batch", "failed at", True),
        ("wrong-version:0.9.15", "is CARLA 0.9.15 and the carla client 0.9.16", False),
        ("silent", "connecting: time-out", True),
    ],
)
def test_failures_of_the_server_are_told_from_those_of_episodes(drive, fault, said, infrastructure):
    with lite_server("--map", "HighwayLoop", "--fault", fault) as (port, _):
        name, message, took, closed = drive(driving.failing, f"127.0.0.1:{port}")
    assert name == ("ServerError" if infrastructure else "SimulationError"), message
    assert said in message
    assert took < 10.0 and closed


def test_an_episode_after_a_failed_one_is_as_on_a_sound_server(drive, highway):
    with lite_server("--map", "HighwayLoop", "--fault", "hang-in-tick:15") as (port, _):
        again, alone = drive(driving.failing_then_driving, f"127.0.0.1:{port}", highway)
    assert again == alone


def test_lite_returns_are_not_scored_nor_called_carla(drive, highway):
    for task in ("carla-lane-v0", "carla-lane-strict-v0"):
        score, name = drive(driving.scores, highway, task, 500.0)
        assert score is None
        assert re.match(r"DrivingLane(Strict)?-v0 on lite server 0\.9\.16, Lite/Maps/HighwayLoop", name)
    assert CATALOGUE["carla-lane-v0"].normalised_score(1023.5784385429523) == 100.0
