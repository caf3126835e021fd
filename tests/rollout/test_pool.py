import os
import signal
import threading
import time
from dataclasses import replace

import psutil
import pytest

from mcnn_ray.errors import DatasetError, SimulationError
from mcnn_ray.policies.base import save_policy
from mcnn_ray.rollout.pool import evaluate
from mcnn_ray.tasks.catalogue import CATALOGUE
from tests.rollout.test_episode import nearest_policy

PEN = CATALOGUE["pen-expert-v1"]
SEEDS = range(100, 106)


@pytest.fixture(scope="module")
def policies(tmp_path_factory, pen_demonstrations):
    folder = tmp_path_factory.mktemp("policies")
    for name, episodes in (("six", 6), ("three", 3)):
        save_policy(nearest_policy(pen_demonstrations.subset(episodes)), folder / name)
    return {"six": folder / "six", "three": folder / "three"}


@pytest.fixture(scope="module")
def one_actor(policies, ray_running):
    return [replace(record, wall_s=0) for record in evaluate(PEN, policies, SEEDS, actors=1)]


def test_records_come_by_policy_and_seed(one_actor):
    assert [(r.member, r.episode_seed) for r in one_actor] == [(m, s) for m in ("six", "three") for s in SEEDS]
    assert len({record.episode_return for record in one_actor}) > 6


def test_records_do_not_depend_on_the_number_of_actors(policies, one_actor, ray_running):
    assert [replace(record, wall_s=0) for record in evaluate(PEN, policies, SEEDS, actors=2)] == one_actor


def test_records_survive_the_death_of_actors(policies, one_actor, ray_running):
    killed = []

    def kill_actors(stop):
        while not stop.is_set() and len(killed) < 2:
            for process in psutil.Process().children(recursive=True):  # of this test's own Ray alone
                if "_RolloutActor.run" in process.name() + " ".join(process.cmdline()):
                    os.kill(process.pid, signal.SIGKILL)
                    killed.append(process.pid)
                    break
            time.sleep(0.1)

    stop = threading.Event()
    thread = threading.Thread(target=kill_actors, args=(stop,))
    thread.start()
    try:
        records = evaluate(PEN, policies, SEEDS, actors=2)
    finally:
        stop.set()
        thread.join()
    assert killed
    assert [replace(record, wall_s=0) for record in records] == one_actor


def test_each_policy_is_handed_over_when_its_last_episode_ends(policies, one_actor, ray_running):
    handed, progress = {}, []
    evaluate(
        PEN,
        policies,
        SEEDS,
        actors=2,
        progress=lambda done, total: progress.append((done, total)),
        finished=lambda member, records: handed.setdefault(member, records),
    )
    assert [replace(r, wall_s=0) for member in policies for r in handed[member]] == one_actor
    assert progress[-1] == (12, 12)


def test_actor_that_always_dies_is_told_after_three_tries(tmp_path, policies, ray_running):
    class Deadly(type(PEN)):
        def normalised_score(self, episode_return):
            os.kill(os.getpid(), signal.SIGKILL)

    deadly = Deadly(**{name: getattr(PEN, name) for name in PEN.__slots__})
    with pytest.raises(SimulationError, match="episode seed 100: the process died 3 times"):
        evaluate(deadly, {"six": policies["six"]}, [100], actors=1)


def test_policy_of_another_task_is_refused_with_its_own_words(policies, ray_running):
    with pytest.raises(DatasetError, match="takes 45 observation numbers"):
        evaluate(CATALOGUE["door-expert-v1"], policies, SEEDS, actors=1)
