"""What a worker that drives can rely on. The carla client is imported in child processes alone."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from mcnn_ray.carla.ports import read_records
from mcnn_ray.carla.processes import group_members

DRIVE = """
import json, sys
import gymnasium as gym
import numpy as np
from mcnn_ray.carla.environment import DrivingEnv
from mcnn_ray.carla.plan import ServerPlan
from mcnn_ray.carla.supervised import SupervisedEnv
from mcnn_ray.errors import ServerError

folder, steps, *arguments = sys.argv[1:]
plan = ServerPlan(
    kind="lite", maps=("HighwayLoop",), folder=folder, arguments=tuple(arguments), tries=2, backoff_s=0.1, episodes=2
)
env = SupervisedEnv(gym.wrappers.TimeLimit(DrivingEnv("lane", timeout_s=5.0), int(steps)), plan)

def episode(seed):
    images = [env.reset(seed=seed)[0]]
    while True:
        image, reward, ended, cut, _ = env.step(np.array([0.5, 0.01], np.float32))
        images.append(image)
        print("step", flush=True)
        if ended or cut:
            return float(np.sum(images, dtype=np.float64))

for seed in (1, 1, 2):
    for attempt in range(9):
        try:
            print(json.dumps([seed, attempt, episode(seed)]), flush=True)
            break
        except ServerError as error:
            print("error", error, flush=True)
env.close()
"""


def driver(folder, *arguments, steps=30):
    command = [sys.executable, "-c", DRIVE, str(folder), str(steps), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def told(process):
    lines = process.communicate()[0].splitlines()
    assert process.returncode == 0, lines
    return [json.loads(line) for line in lines if line.startswith("[")], [x for x in lines if x.startswith("error")]


def check_nothing_is_left(folder, servers=()):
    deadline = time.monotonic() + 10
    while list(read_records(folder)) or any(group_members(server) for server in servers):
        assert time.monotonic() < deadline, list(read_records(folder))
        time.sleep(0.05)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What the three episodes are without faults; the server is started anew after the second."""
    folder = tmp_path_factory.mktemp("undisturbed")
    found, errors = told(driver(folder))
    check_nothing_is_left(folder)
    assert not errors
    return found


def test_episode_does_not_depend_on_what_its_server_did_before(undisturbed):
    assert [seed for seed, _, _ in undisturbed] == [1, 1, 2]
    assert undisturbed[0] == undisturbed[1] != undisturbed[2]


# In the second episode, or the first where the server has run by itself for long before it; it ends after two.
@pytest.mark.parametrize("fault", ["hang-in-tick:60", "crash-in-tick:60"])
def test_episode_whose_server_fails_is_told_and_is_the_same_on_the_next_one(tmp_path, undisturbed, fault):
    found, errors = told(driver(tmp_path, "--fault", fault))
    assert [(seed, value) for seed, _, value in found] == [(seed, value) for seed, _, value in undisturbed]
    assert errors
    check_nothing_is_left(tmp_path)


def test_server_stopped_in_an_episode_is_replaced(tmp_path, undisturbed):
    process = driver(tmp_path)
    assert process.stdout.readline() == "step\n"
    (record,) = read_records(tmp_path)
    os.kill(record.server.pid, signal.SIGSTOP)
    found, errors = told(process)
    assert [value for _, _, value in found] == [value for _, _, value in undisturbed]
    assert len(errors) == 1
    assert "time-out" in errors[0]
    check_nothing_is_left(tmp_path, [record.server])


def test_server_of_a_killed_worker_is_ended(tmp_path):
    process = driver(tmp_path, steps=10000)
    assert process.stdout.readline() == "step\n"
    (record,) = read_records(tmp_path)
    assert record.state == "running"
    process.kill()
    process.communicate()
    check_nothing_is_left(tmp_path, [record.server])


def test_worker_that_takes_no_step_is_ended_with_its_server(tmp_path):
    program = f"""
import time
from mcnn_ray.carla.lease import ServerLease
from mcnn_ray.carla.plan import ServerPlan
lease = ServerLease(ServerPlan(kind="lite", maps=("HighwayLoop",), folder={str(tmp_path)!r}, stall_limit_s=1.0))
lease.acquire()
for _ in range(20):
    lease.beat()
    time.sleep(0.1)
print("beaten", flush=True)
time.sleep(1000)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "beaten\n"
    (record,) = read_records(tmp_path)
    assert process.wait(20) == -signal.SIGKILL
    deadline = time.monotonic() + 10
    while group_members(record.server):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (record,) = read_records(tmp_path)
    assert (record.state, record.reason, record.failures) == ("dead", "no step in 1 s", 1)
    process.stdout.close()


def test_killed_keeper_takes_its_server_along_and_the_worker_goes_on_with_another(tmp_path, undisturbed):
    process = driver(tmp_path)
    assert process.stdout.readline() == "step\n"
    (record,) = read_records(tmp_path)
    os.kill(record.keeper.pid, signal.SIGKILL)
    found, errors = told(process)
    assert [value for _, _, value in found] == [value for _, _, value in undisturbed]
    assert errors
    check_nothing_is_left(tmp_path, [record.server])
