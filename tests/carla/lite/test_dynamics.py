import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcnn_ray.carla.lite.dynamics import Car, Controls, advance
from mcnn_ray.carla.lite.geometry import boxes_overlap

HALF_LENGTH = 1.853


def drive(car, controls, seconds, slope=0.0):
    for _ in range(round(seconds / 0.05)):
        advance(car, controls, half_length=HALF_LENGTH, slope=slope, delta_s=0.05)
    return car


def test_full_throttle_reaches_100_km_h_in_the_time_of_a_small_car():
    car, seconds = Car(0.0, 0.0, 0.0), 0.0
    while car.speed < 100 / 3.6:
        drive(car, Controls(throttle=1.0), 0.05)
        seconds += 0.05
    assert 8.0 < seconds < 14.0


def test_brakes_stop_a_car_and_hold_it_even_on_a_slope():
    car = drive(Car(0.0, 0.0, 0.0, speed=20.0), Controls(brake=1.0), 5.0)
    assert car.speed == 0.0
    assert 20.0 < car.x < 26.0  # 20 m/s at 8 m/s2
    assert drive(car, Controls(brake=1.0), 2.0, slope=-0.2).speed == 0.0
    assert drive(car, Controls(), 2.0, slope=-0.2).speed > 2.0


@given(
    speed=st.floats(0.0, 60.0),
    throttle=st.floats(-2.0, 2.0),
    brake=st.floats(-2.0, 2.0),
    steer=st.floats(-2.0, 2.0),
    slope=st.floats(-0.3, 0.3),
)
def test_tyres_never_hold_more_than_their_grip_and_speed_is_never_negative(speed, throttle, brake, steer, slope):
    car = Car(0.0, 0.0, 0.3, speed=speed)
    advance(car, Controls(throttle, steer, brake), half_length=HALF_LENGTH, slope=slope, delta_s=0.05)
    assert car.speed >= 0.0
    assert abs(car.yaw_rate) * (speed + car.speed) / 2 <= 7.5 + 1e-9


def test_slow_turn_has_the_bicycles_radius_and_a_fast_one_a_wider():
    angle = math.radians(70.0) * 0.2  # steering 0.2
    wheelbase = 2 * HALF_LENGTH * 0.62
    slip = math.atan(math.tan(angle) / 2)
    expected = wheelbase / (math.cos(slip) * math.tan(angle))
    radii = []
    for speed in (0.5, 25.0):
        car = Car(0.0, 0.0, 0.0, speed=speed)
        advance(car, Controls(steer=0.2), half_length=HALF_LENGTH, slope=0.0, delta_s=1e-3)
        radii.append(car.speed / car.yaw_rate)
    assert radii[0] == pytest.approx(expected, rel=0.02)
    assert radii[1] > 5 * expected


def test_positive_steering_turns_right_which_is_positive_yaw():
    assert drive(Car(0.0, 0.0, 0.0, speed=5.0), Controls(steer=0.1), 0.5).yaw > 0.0


@given(x=st.floats(-6, 6), y=st.floats(-6, 6), yaw=st.floats(-180, 180), other_yaw=st.floats(-180, 180))
def test_boxes_overlap_where_one_holds_a_point_of_the_other(x, y, yaw, other_yaw):
    first, second = (0.0, 0.0, 0.0, 0.0, yaw, 0.0), (x, y, 0.5, 0.0, other_yaw, 0.0)
    extent, other_extent = (2.0, 1.0, 0.8), (1.5, 0.7, 0.8)
    found = boxes_overlap(first, extent, second, other_extent)
    assert found == boxes_overlap(second, other_extent, first, extent)

    def shared(margin):
        """Whether a grid over the second box, grown by a margin, has a point in the first, grown by it."""
        c, s = math.cos(math.radians(other_yaw)), math.sin(math.radians(other_yaw))
        a, b = math.cos(math.radians(yaw)), math.sin(math.radians(yaw))
        for i in range(31):
            for j in range(15):
                u = (i / 15 - 1) * (other_extent[0] + margin)
                v = (j / 7 - 1) * (other_extent[1] + margin)
                px, py = x + c * u - s * v, y + s * u + c * v
                if abs(a * px + b * py) < extent[0] + margin and abs(a * py - b * px) < extent[1] + margin:
                    return True
        return False

    if shared(0.0):
        assert found
    if not shared(0.15):
        assert not found


def test_boxes_on_two_levels_of_a_bridge_do_not_overlap():
    assert not boxes_overlap((0, 0, 0, 0, 0, 0), (2, 1, 0.8), (0, 0, 5, 0, 0, 0), (2, 1, 0.8))
