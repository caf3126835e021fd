"""What is seen where, against the pinhole's formula."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcnn_ray.carla.lite import drawing
from mcnn_ray.carla.lite.camera import Camera
from mcnn_ray.carla.lite.palette import CLEAR, Palette
from mcnn_ray.carla.lite.raster import ASPHALT, CELL_M, WHITE_PAINT, Raster

CAR = (1.85, 0.9, 0.775)
D4RL_MOUNT = (1.6, 0.0, 1.7, 0.0, 0.0, 0.0)
PALETTE = Palette(CLEAR, np.array([[200.0, 20, 20], [20.0, 20, 200]]))


def see(camera, frame, cells=None, cars=(), colours=()):
    raster = Raster(np.full((1000, 1000), ASPHALT, dtype=np.uint8) if cells is None else cells, (-100.0, -100.0))
    poses = np.array(cars, dtype=np.float32).reshape(-1, 6)
    extents = np.tile(CAR, (len(poses), 1))
    pixels = camera.see(frame, raster, PALETTE, poses, extents, np.array(colours, dtype=np.intp))
    return pixels.view(np.uint8).reshape(*pixels.shape, 4)[..., 2::-1].astype(int)


def project(camera, forward, right, up):
    """Pixels of a point seen from a level camera."""
    return camera.width / 2 + camera.focal * right / forward, camera.height / 2 - camera.focal * up / forward


@given(
    width=st.sampled_from([48, 64, 200]),
    height=st.sampled_from([48, 90]),
    fov=st.sampled_from([30.0, 48.0, 90.0, 120.0]),
    yaw=st.sampled_from([0.0, -90.0, 37.0, 180.0]),
    forward=st.floats(5.0, 30.0),
    right=st.floats(-4.0, 4.0),
)
def test_paint_appears_where_the_projection_says(width, height, fov, yaw, forward, right):
    camera = Camera(width, height, fov, D4RL_MOUNT)
    u, v = project(camera, forward, right, -D4RL_MOUNT[2])
    column, row = math.floor(u), math.floor(v)
    if not (0 <= column < width and 0 <= row < height):
        return
    cos, sin = math.cos(math.radians(yaw)), math.sin(math.radians(yaw))
    x, y = 3.0 + cos * (1.6 + forward) - sin * right, -7.0 + sin * (1.6 + forward) + cos * right
    cells = np.full((1000, 1000), ASPHALT, dtype=np.uint8)
    # A pixel sees one point of what it covers, so what is painted covers as much ground as the pixel does.
    reach = max(2, math.ceil(forward**2 / (camera.focal * 1.7) / CELL_M), math.ceil(forward / camera.focal / CELL_M))
    i, j = int((y + 100) / CELL_M), int((x + 100) / CELL_M)
    cells[i - reach : i + reach + 1, j - reach : j + reach + 1] = WHITE_PAINT
    frame = (3.0, -7.0, 0.0, 0.0, yaw, 0.0)
    assert see(camera, frame, cells)[row, column].min() > 150
    assert see(camera, frame)[row, column].max() < 150


@settings(max_examples=60)
@given(
    forward=st.floats(9.0, 60.0), right=st.floats(-3.0, 3.0), heading=st.floats(-180.0, 180.0), yaw=st.floats(-180, 180)
)
def test_car_covers_the_pixels_of_its_box_and_no_others(forward, right, heading, yaw):
    camera = Camera(160, 120, 60.0, D4RL_MOUNT)
    cos, sin = math.cos(math.radians(yaw)), math.sin(math.radians(yaw))
    car = (cos * forward - sin * right, sin * forward + cos * right, 0.0, 0.0, yaw + heading, 0.0)
    frame = (0.0, 0.0, 0.0, 0.0, yaw, 0.0)
    covered = np.any(see(camera, frame, cars=[car], colours=[0]) != see(camera, frame), axis=-1)
    corners = []
    c, s = math.cos(math.radians(heading)), math.sin(math.radians(heading))
    for a in (-CAR[0], CAR[0]):
        for b in (-CAR[1], CAR[1]):
            for z in (0.0, 2 * CAR[2]):
                corners.append(project(camera, forward - 1.6 + c * a - s * b, right + s * a + c * b, z - 1.7))
    left, top = np.min(corners, axis=0)
    last, bottom = np.max(corners, axis=0)
    rows, columns = np.nonzero(covered)
    inside = (min(max(last, 0), 160) - min(max(left, 0), 160)) * (bottom - top)
    if inside < 9:
        return
    # Pixels are seen by their middles: none lies outside, and of a sharp corner the tip may be missed.
    assert -0.5 <= rows.min() - top <= 3
    assert -0.5 <= bottom - rows.max() - 1 <= 3
    assert -0.5 <= columns.min() - max(left, 0) <= 3
    assert -0.5 <= min(last, 160) - columns.max() - 1 <= 3


def test_nearer_car_hides_the_farther_whatever_their_order():
    camera = Camera(48, 48, 48.0, D4RL_MOUNT)
    red, blue = (12.0, 0.0, 0.0, 0.0, 0.0, 0.0), (25.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    frame = (0.0,) * 6
    both = see(camera, frame, cars=[red, blue], colours=[0, 1])
    assert np.array_equal(both, see(camera, frame, cars=[blue, red], colours=[1, 0]))
    back = both[30, 24]  # below the window of the nearer one
    assert back[0] > 2 * back[2]


def test_car_on_a_hill_appears_higher():
    camera = Camera(48, 48, 48.0, D4RL_MOUNT)
    frame, empty = (0.0,) * 6, see(camera, (0.0,) * 6)
    tops = []
    for z in (0.0, 3.0):
        picture = see(camera, frame, cars=[(40.0, 0.0, z, 0.0, 0.0, 0.0)], colours=[0])
        tops.append(np.nonzero(np.any(picture != empty, axis=-1))[0].min())
    assert tops[1] < tops[0] - 2


def test_car_beside_or_behind_is_not_seen():
    camera = Camera(48, 48, 48.0, D4RL_MOUNT)
    empty = see(camera, (0.0,) * 6)
    for x, y in ((-6.0, 0.0), (1.6, 4.0), (0.0, -3.5), (3.0, 40.0)):
        assert np.array_equal(empty, see(camera, (0.0,) * 6, cars=[(x, y, 0.0, 0.0, 0.0, 0.0)], colours=[0])), (x, y)


def test_camera_that_looks_down_sees_only_ground_and_one_that_looks_up_only_sky():
    down = see(Camera(40, 30, 90.0, (0.0, 0.0, 30.0, -90.0, 0.0, 0.0)), (0.0,) * 6)
    up = see(Camera(40, 30, 30.0, (0.0, 0.0, 2.0, 45.0, 0.0, 0.0)), (0.0,) * 6)
    assert np.ptp(down.reshape(-1, 3), axis=0).max() < 30
    assert down.max() < 150
    assert (up[..., 2] > up[..., 0] + 20).all()


@pytest.mark.parametrize("place, value", [(0, 100.0), (6, 100.0), (9, 100.0), (5, -20.0)])
def test_clouds_fog_wetness_and_night_change_the_colours(place, value):
    weather = list(CLEAR)
    weather[place] = value
    changed = Palette(weather, np.array([[200.0, 20, 20]]))
    assert not np.array_equal(changed.ground, PALETTE.ground)


@given(
    cars=st.lists(
        st.tuples(st.floats(-20.0, 60.0), st.floats(-15.0, 15.0), st.floats(-2.0, 2.0), st.floats(-180.0, 180.0)),
        max_size=5,
    ),
    yaw=st.floats(-180.0, 180.0),
    pitch=st.floats(-10.0, 10.0),
)
@settings(max_examples=25, deadline=None)
def test_compiled_drawing_equals_the_same_loops_in_python(cars, yaw, pitch):
    camera, frame = Camera(16, 12, 70.0, D4RL_MOUNT), (0.5, -0.5, 0.1, pitch, yaw, 0.0)
    poses = [(x, y, z, 0.0, heading, 0.0) for x, y, z, heading in cars]
    colours = [index % 2 for index in range(len(cars))]
    compiled = see(camera, frame, cars=poses, colours=colours)
    with pytest.MonkeyPatch.context() as patch, np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        patch.setattr("mcnn_ray.carla.lite.camera.draw_ground", drawing.draw_ground.py_func)
        patch.setattr("mcnn_ray.carla.lite.camera.draw_vehicles", drawing.draw_vehicles.py_func)
        plain = see(camera, frame, cars=poses, colours=colours)
    # A ray may meet an edge within a rounding.
    assert np.any(compiled != plain, axis=-1).sum() <= 1


def test_car_whose_middle_is_farther_hides_the_side_of_one_that_lies_behind_its_end():
    camera = Camera(400, 48, 90.0, D4RL_MOUNT)
    along, across = (11.85, 3.0, 0.0, 0.0, 0.0, 0.0), (12.6, 0.2, 0.0, 0.0, 90.0, 0.0)
    frame = (0.0,) * 6
    both = see(camera, frame, cars=[across, along], colours=[0, 1])
    empty, first, second = (see(camera, frame, cars=cars, colours=[0]) for cars in ([], [across], [along]))
    covered = np.any(first != empty, axis=-1)
    assert (covered & np.any(second != empty, axis=-1)).sum() > 20
    assert np.array_equal(both[covered], first[covered])
