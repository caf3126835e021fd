import pytest

pytest.importorskip("msgpack", reason="the extra [carla] is not installed")

from tests.carla.lite.processes import lite_server


@pytest.fixture(scope="module")
def highway():
    """The port of a server with the highway; what a test changes there it leaves behind."""
    with lite_server("--map", "HighwayLoop") as (port, _):
        yield port


@pytest.fixture(scope="module")
def town():
    with lite_server("--map", "SmallTown") as (port, _):
        yield port
