"""The expert drives as demonstrations should be driven, against lite servers."""

import pytest

from tests.carla import driving


def test_the_expert_keeps_its_lane_to_the_end_and_gives_way(drive, highway):
    found = drive(driving.driven_by_expert, "carla-lane-v0", highway, range(2, 5), 250)
    for total, success, length, ending, _ in found:
        assert (success, length, ending) == (True, 250, "")
        assert total > 300.0
    assert len({round(total) for total, *_ in found}) == 3
    assert any(braked for *_, braked in found)


def test_the_expert_repeats_itself_with_the_seed(drive, highway):
    first, second = (drive(driving.driven_by_expert, "carla-lane-v0", highway, [1], 60) for _ in range(2))
    assert first == second
    assert first != drive(driving.driven_by_expert, "carla-lane-v0", highway, [1], 60, False)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_expert_follows_the_route_of_the_town(drive, town, seed):
    ((total, _, length, ending, _),) = drive(driving.driven_by_expert, "carla-town-v0", town, [seed], 400)
    assert (length, ending) == (400, "")
    assert total > 600.0  # 30 m of route and more
