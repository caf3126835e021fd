"""Processes of the driving tests: the client library is imported in none of the tests' own."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest


@pytest.fixture(scope="session")
def drive():
    """Calls a function of a test module in a process of its own, the same for all tests."""
    pytest.importorskip("msgpack", reason="the extra [carla] is not installed")
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:

        def call(function, *arguments):
            return process.submit(function, *arguments).result(timeout=240)

        yield call


@pytest.fixture(scope="session")
def highway():
    """The address of a lite server with the highway."""
    from tests.carla.lite.processes import lite_server

    with lite_server("--map", "HighwayLoop") as (port, _):
        yield f"127.0.0.1:{port}"


@pytest.fixture(scope="session")
def town():
    from tests.carla.lite.processes import lite_server

    with lite_server("--map", "SmallTown") as (port, _):
        yield f"127.0.0.1:{port}"
