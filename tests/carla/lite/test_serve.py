"""The server as a process: what it is given, what it is sent, how it ends."""

import re
import signal
import socket
import subprocess
import sys

import msgpack
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcnn_ray.carla.ports import lease_block
from tests.carla.lite.processes import RawClient, ended_by, lite_server

SERVE = [sys.executable, "-m", "mcnn_ray", "carla", "serve"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_server_cleanly_though_clients_are_connected(number):
    with lite_server() as (port, process), RawClient(port) as client:
        client.call("version")
        assert ended_by(process, number) == (0, "")


def test_server_listens_on_127_0_0_1_alone():
    with lite_server() as (port, process):
        listening = [found.laddr for found in psutil.Process(process.pid).net_connections() if found.status == "LISTEN"]
    assert sorted(map(tuple, listening)) == [("127.0.0.1", port), ("127.0.0.1", port + 1)]


@pytest.mark.parametrize("taken", [0, 1])
def test_taken_port_is_one_sentence_that_names_it(taken, tmp_path):
    lease = lease_block(tmp_path)
    port = lease.port + taken
    try:
        with socket.create_server(("127.0.0.1", port)):
            done = subprocess.run(
                [*SERVE, "--lite", "--port", str(lease.port)], capture_output=True, text=True, timeout=60
            )
    finally:
        lease.release()
    assert done.returncode == 1
    assert re.fullmatch(rf"error: port {port} .*--port.*\n", done.stderr)


@pytest.mark.parametrize(
    "text, status, said",
    [
        (None, 2, "no map"),
        ("this is no map", 1, "OpenDRIVE"),
        ("<OpenDRIVE><header/></OpenDRIVE>", 1, "no driving lane"),
        ("\0\1\2", 1, "OpenDRIVE"),
    ],
)
def test_bad_map_is_one_sentence(tmp_path, text, status, said):
    file = tmp_path / "bad.xodr"
    if text is not None:
        file.write_text(text)
    done = subprocess.run([*SERVE, "--lite", "--map", str(file)], capture_output=True, text=True, timeout=60)
    assert done.returncode == status
    # The client's library warns of a map without a geographic reference.
    (error,) = [line for line in done.stderr.splitlines() if not line.startswith("WARNING")]
    assert said in error
    assert "bad" in error


def test_without_lite_it_says_what_to_do():
    done = subprocess.run(SERVE, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "--lite" in done.stderr


def alive(port):
    with RawClient(port) as client:
        return client.call("version") == [[1, "0.9.16"]]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=6)
    | st.binary(max_size=6),
    lambda inner: st.lists(inner, max_size=7) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)
METHODS = st.sampled_from(
    [
        "spawn_actor",
        "spawn_actor_with_parent",
        "destroy_actor",
        "apply_batch",
        "apply_control_to_vehicle",
        "set_actor_transform",
        "set_actor_location",
        "set_actor_target_velocity",
        "set_episode_settings",
        "set_weather_parameters",
        "get_actors_by_id",
        "get_sensor_token",
        "copy_opendrive_to_file",
        "load_new_episode",
        "tick_cue",
        "no_such_call",
    ]
)


@settings(max_examples=150)
@given(method=METHODS, arguments=st.lists(VALUES, max_size=4))
def test_calls_with_senseless_arguments_are_answered_and_harm_nothing(town, method, arguments):
    with RawClient(town) as client:
        answer = client.send(msgpack.packb([0, 1, method, [[False], *arguments]]))
        assert isinstance(answer, list)
        assert client.call("version") == [[1, "0.9.16"]]


@settings(max_examples=60)
@given(value=VALUES)
def test_messages_that_are_no_calls_close_only_their_connection(town, value):
    with RawClient(town) as other:
        other.call("version")
        with socket.create_connection(("127.0.0.1", town)) as connection:
            connection.sendall(msgpack.packb(value))
            connection.settimeout(5)
            assert connection.recv(10) == b""
        assert other.call("version") == [[1, "0.9.16"]]


@settings(max_examples=60)
@given(data=st.binary(min_size=1, max_size=200))
def test_any_bytes_on_either_port_leave_the_server_alive(town, data):
    for port in (town, town + 1):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(data)
    assert alive(town)


def test_numbers_without_an_end_reach_no_actor(town):
    with RawClient(town) as client:
        pose = [[-13.47, 160.0, 0.1], [0.0, -90.0, 0.0]]
        ((_, told),) = client.call("spawn_actor", [1, "vehicle.audi.a2", []], pose)
        for value in (float("nan"), float("inf"), 1e30):
            for method, argument in (
                ("set_actor_transform", [[value, 0.0, 0.0], [0.0, 0.0, 0.0]]),
                ("set_actor_target_velocity", [value, 0.0, 0.0]),
                ("apply_control_to_vehicle", [value, 0.0, 0.0, False, False, False, 0]),
            ):
                ((status, message),) = client.call(method, told[0], argument)
                assert status == 0
                assert "finite" in message[0]
