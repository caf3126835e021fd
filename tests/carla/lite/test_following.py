"""How vehicles keep their distance."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcnn_ray.carla.lite.following import acceleration, most_acceleration


@given(
    speed=st.floats(0.0, 30.0),
    room=st.floats(-5.0, 60.0),
    frames=st.integers(1, 20),
    delta_s=st.sampled_from([0.01, 0.05, 0.1, 0.5]),
)
def test_vehicle_under_the_largest_acceleration_stays_within_its_room(speed, room, frames, delta_s):
    acceleration = most_acceleration(speed, room, delta_s, frames)
    travelled, now = 0.0, speed
    for _ in range(frames):
        now = max(now + acceleration * delta_s, 0.0)
        travelled += now * delta_s
    assert travelled <= max(room, 0.0) + 1e-6
    if room > 0 and now > 0:  # and it uses what it has, unless it stops
        assert travelled == pytest.approx(room, abs=1e-6)


@given(
    speed=st.floats(0.0, 20.0),
    gap=st.floats(0.5, 80.0),
    lead=st.floats(0.0, 20.0),
    frames=st.integers(1, 4),
)
def test_vehicle_neither_touches_one_that_brakes_before_it_nor_exceeds_its_speed(speed, gap, lead, frames):
    speed = min(speed, 8.0)
    for _ in range(200):
        change = acceleration(speed, 8.0, gap, lead, 0.05, frames)
        for _ in range(frames):
            lead = max(lead - 8.0 * 0.05, 0.0)
            speed = max(speed + change * 0.05, 0.0)
            gap += (lead - speed) * 0.05
        assert gap > 0.0
        assert speed < 8.5


def test_vehicle_behind_a_steady_one_settles_at_its_speed_with_a_gap_that_grows_with_it():
    gaps = []
    for lead in (2.0, 4.0, 6.0):
        gap, speed = 30.0, 0.0
        for _ in range(3000):
            change = acceleration(speed, 10.0, gap, lead, 0.05, 4)
            for _ in range(4):
                speed = max(speed + change * 0.05, 0.0)
                gap += (lead - speed) * 0.05
        assert speed == pytest.approx(lead, rel=0.01)
        gaps.append(gap)
    # Treiber et al. 2000, equation 4 of the equilibrium gap, here with 2.5 m and 1.2 s.
    expected = [(2.5 + 1.2 * v) / (1 - (v / 10.0) ** 4) ** 0.5 for v in (2.0, 4.0, 6.0)]
    assert gaps == pytest.approx(expected, rel=0.02)
