"""Each fault does what its table says, and what cannot be a fault is refused in a sentence."""

import subprocess
import sys
import time

import pytest

from mcnn_ray.carla.lite.faults import FAULTS, parse_faults
from mcnn_ray.errors import ConfigError
from tests.carla.lite.processes import RawClient, lite_server, run_client

SYNCHRONOUS = [True, False, [True, 0.05], True, 0.01, 10, 0.0, False, 3000.0, 2000.0, True]
TEN_TICKS = """
world = client.get_world()
done = 0
try:
    synchronous(world)
    for done in range(10):
        world.tick()
except RuntimeError as error:
    print(json.dumps([done, str(error)]))
"""


@pytest.mark.parametrize(
    "text, said",
    [
        ("hang-in-tik:3", "did you mean 'hang-in-tick'"),
        ("hang-in-tick:x", "not a whole number"),
        ("hang-in-tick:0", "not above 0"),
        ("drop-frames", "needs a value"),
        ("silent:1", "takes no value"),
        ("slow-start:nan", "not above 0"),
    ],
)
def test_what_is_no_fault_is_refused_with_the_reason(text, said):
    with pytest.raises(ConfigError, match=said):
        parse_faults([text])


def test_every_fault_is_described():
    import mcnn_ray.carla.lite.faults as module

    assert all(f"`{name}" in module.__doc__ for name in FAULTS)


def test_hang_in_tick_answers_nothing_more_while_the_process_lives():
    with lite_server("--fault", "hang-in-tick:5") as (port, process):
        with RawClient(port, timeout_s=1.0) as client:
            client.call("set_episode_settings", SYNCHRONOUS)
            for _ in range(20):
                try:
                    client.call("tick_cue")
                except TimeoutError:
                    break
            else:
                pytest.fail("it never hung")
        with RawClient(port, timeout_s=0.5) as client, pytest.raises(TimeoutError):
            client.call("version")
        assert process.poll() is None


def test_real_client_meets_a_time_out_at_a_hang():
    with lite_server("--fault", "hang-in-tick:60") as (port, _):
        program = TEN_TICKS.replace("range(10)", "range(100)")
        done, error = run_client(port, program, timeout_s=1.5)
    assert done > 0
    assert "time-out of 1500ms" in error


def test_crash_in_tick_ends_the_process_as_a_segmentation_fault_does():
    with lite_server("--fault", "crash-in-tick:3") as (_, process):
        assert process.wait(timeout=20) == -11  # its own clock ticks


def test_crash_in_call_ends_the_process_at_that_call():
    with lite_server("--fault", "crash-in-call:get_map_info") as (port, process):
        with RawClient(port) as client:
            client.call("version")
            with pytest.raises(OSError):
                client.call("get_map_info")
        assert process.wait(timeout=20) == -11


def test_slow_start_listens_later():
    started = time.monotonic()
    with lite_server("--fault", "slow-start:3"):
        slow = time.monotonic() - started
    assert slow > 3.0


def test_silent_server_accepts_and_answers_nothing():
    with (
        lite_server("--fault", "silent") as (port, _),
        RawClient(port, timeout_s=0.5) as client,
        pytest.raises(TimeoutError),
    ):
        client.call("version")


def test_slow_tick_takes_so_much_longer():
    with lite_server("--fault", "slow-tick:300") as (port, _), RawClient(port) as client:
        client.call("set_episode_settings", SYNCHRONOUS)
        started = time.monotonic()
        for _ in range(3):
            client.call("tick_cue")
        assert time.monotonic() - started > 0.9


def test_every_nth_image_is_dropped():
    with lite_server("--fault", "drop-frames:4") as (port, _):
        missing = run_client(
            port,
            """
            world = synchronous(client.get_world())
            sensor, images = camera(world, vehicle(world, 5, 0, -90))
            frames = [world.tick() for _ in range(12)]
            time.sleep(1.0)
            got = {images.get().frame for _ in range(images.qsize())}
            print(json.dumps([index for index, frame in enumerate(frames, start=1) if frame not in got]))
            """,
        )
    assert missing == [4, 8, 12]


def test_wrong_version_is_what_the_client_is_told():
    with lite_server("--fault", "wrong-version") as (port, _):
        assert run_client(port, "print(json.dumps(client.get_server_version()))") == "0.9.15"


def test_garbage_ends_the_process_of_a_real_client():
    with lite_server("--fault", "garbage:1") as (port, _):
        time.sleep(0.3)  # its own clock ticks
        run_client(port, "client.get_server_version()", status=-6)


def test_error_replies_reach_the_client_as_errors_and_nothing_else_is_harmed():
    with lite_server("--fault", "error-replies:tick_cue") as (port, _):
        done, error = run_client(port, TEN_TICKS)
        assert done == 0
        assert "tick_cue" in error
        assert run_client(port, "print(json.dumps(client.get_server_version()))") == "0.9.16"


def test_leak_keeps_memory_at_every_load():
    import psutil

    with lite_server("--fault", "leak:50") as (port, process), RawClient(port) as client:
        before = psutil.Process(process.pid).memory_info().rss
        for _ in range(2):
            client.call("load_new_episode", "HighwayLoop", True, 0)
        assert psutil.Process(process.pid).memory_info().rss - before > 90 * 2**20


def test_unknown_fault_is_one_sentence_on_the_command_line():
    command = [sys.executable, "-m", "mcnn_ray", "carla", "serve", "--lite", "--fault", "bogus"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "no fault 'bogus'" in done.stderr
    assert "Traceback" not in done.stderr
