import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import psutil
import pytest

from mcnn_ray.cli import main
from mcnn_ray.core.normalise import ActionScale, Standardiser
from mcnn_ray.errors import DatasetError
from mcnn_ray.member import make_member
from mcnn_ray.policies.base import save_policy
from mcnn_ray.policies.nearest import NearestPolicy
from mcnn_ray.rollout import pool
from mcnn_ray.rollout.episode import EVALUATION_SEED
from mcnn_ray.rollout.outcome import EpisodeError
from mcnn_ray.rollout.pool import evaluate
from mcnn_ray.tasks.catalogue import CATALOGUE, find_task
from tests.rollout.test_episode import nearest_policy

PEN = CATALOGUE["pen-expert-v1"]
SEEDS = range(100, 110)  # one block of episodes in step, and a part of one


def untimed(evaluation):
    assert not evaluation.lost
    return [replace(rollout.record, wall_s=0) for rollout in evaluation.rollouts]


@pytest.fixture(scope="module")
def policies(tmp_path_factory, pen_demonstrations):
    folder = tmp_path_factory.mktemp("policies")
    for name, episodes in (("six", 6), ("three", 3)):
        save_policy(nearest_policy(pen_demonstrations.subset(episodes)), folder / name)
    return {"six": folder / "six", "three": folder / "three"}


@pytest.fixture(scope="module")
def one_actor(policies, ray_running):
    return untimed(evaluate(PEN, policies, SEEDS, actors=1))


def test_records_come_by_policy_and_seed(one_actor):
    assert [(r.member, r.episode_seed) for r in one_actor] == [(m, s) for m in ("six", "three") for s in SEEDS]
    assert len({record.episode_return for record in one_actor}) > 10


@pytest.fixture(scope="module")
def two_actors(policies, ray_running):
    """What came of two actors, and what they were told to have done on the way."""
    handed, progress = {}, []
    evaluation = evaluate(
        PEN,
        policies,
        SEEDS,
        actors=2,
        progress=lambda done, total: progress.append((done, total)),
        finished=lambda member, rollouts: handed.setdefault(member, rollouts),
    )
    return evaluation, handed, progress


def test_records_do_not_depend_on_the_number_of_actors(two_actors, one_actor):
    assert untimed(two_actors[0]) == one_actor


def test_records_survive_the_death_of_actors(policies, one_actor, ray_running):
    killed = []

    def kill_actors(stop):
        while not stop.is_set() and len(killed) < 2:
            for process in psutil.Process().children(recursive=True):  # of this test's own Ray alone
                with contextlib.suppress(psutil.NoSuchProcess):
                    if "_RolloutActor.run" in process.name() + " ".join(process.cmdline()):
                        process.kill()
                        killed.append(process.pid)
                        break
            time.sleep(0.02)

    stop = threading.Event()
    thread = threading.Thread(target=kill_actors, args=(stop,))
    thread.start()
    try:
        evaluation = evaluate(PEN, policies, SEEDS, actors=2)
    finally:
        stop.set()
        thread.join()
    assert killed
    assert untimed(evaluation) == one_actor


def test_each_policy_is_handed_over_when_its_last_episode_ends(two_actors, policies, one_actor):
    _, handed, progress = two_actors
    assert [replace(rollout.record, wall_s=0) for member in policies for rollout in handed[member]] == one_actor
    assert progress[-1] == (20, 20)


def troubled(method):
    """The pen task, with something else done when an episode's score is asked for."""
    task = type("Troubled", (type(PEN),), {"__slots__": (), "normalised_score": method})
    return task(**{name: getattr(PEN, name) for name in PEN.__slots__})


def test_episode_whose_process_always_dies_is_lost_and_the_others_are_scored(
    policies, one_actor, ray_running, monkeypatch
):
    monkeypatch.setattr(pool, "_ATTEMPTS", 1)
    fatal = one_actor[1].episode_return

    def die(task, episode_return):
        if episode_return == fatal or abs(episode_return - fatal) < 1e-3 * abs(fatal):
            os.kill(os.getpid(), signal.SIGKILL)
        return PEN.normalised_score(episode_return)

    evaluation = evaluate(troubled(die), {"six": policies["six"]}, SEEDS[:2], actors=2)
    assert [rollout.record.episode_seed for rollout in evaluation.rollouts] == [SEEDS[0]]
    assert [(lost.member, lost.episode_seed) for lost in evaluation.lost] == [("six", SEEDS[1])]
    assert "1 times the process died" in evaluation.lost[0].reason


def test_what_could_be_evaluated_where_the_environment_fails_is_kept_and_shown(tmp_path, ray_running, capsys):
    member = make_member(method="1nn", seed=0, steps=1)
    task = find_task("tests.environments:Fragile-v0@me/fragile-v0")
    zeros, ones = np.zeros((1, 2), np.float32), np.ones(1, np.float32)
    policy = NearestPolicy(
        {"task": task.id, "identity": "0123456789ab", "member": member.parameters()},
        Standardiser(mean_D=zeros[0], scale_D=zeros[0] + 1),
        ActionScale(low_A=-ones, high_A=ones),
        zeros,
        zeros[:, :1],
    )
    save_policy(policy, tmp_path / "policy")
    first = EVALUATION_SEED
    with pytest.raises(EpisodeError, match=f"episode seed {first}, step 4: RuntimeError: the gripper is stuck") as told:
        evaluate(task, {"nearest": tmp_path / "policy"}, range(first, first + 16), actors=1)
    kept = [rollout.record.episode_seed for rollout in told.value.evaluation.rollouts]
    assert kept == list(range(first + 1, first + 16))
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "evaluate",
                str(tmp_path / "policy"),
                "--episodes",
                "16",
                "--actors",
                "1",
                "--trust-module",
                "tests.environments",
            ]
        )
    captured = capsys.readouterr()
    assert ended.value.code == 1
    assert "the gripper is stuck" in captured.err
    assert re.search(r"1nn .* 15 *\n", captured.out)


def test_episode_past_its_deadline_is_ended_and_lost(policies, ray_running, monkeypatch):
    monkeypatch.setattr(pool, "_ATTEMPTS", 2)

    def sleep(task, episode_return):
        time.sleep(60)

    evaluation = evaluate(troubled(sleep), {"six": policies["six"]}, [100], actors=1, deadline_s=2.0)
    assert evaluation.rollouts == []
    assert evaluation.lost[0].reason == "2 times it took longer than 2 s"


ON_A_GPU = """
import pathlib, ray, sys
from mcnn_ray.policies import loading
from mcnn_ray.rollout.pool import evaluate
from mcnn_ray.tasks.catalogue import CATALOGUE
from tests.rollout.test_pool import Placed

loading._KINDS["nearest"] = Placed
ray.init(address="local", num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False)
found = evaluate(CATALOGUE["pen-expert-v1"], {"six": pathlib.Path(sys.argv[1])}, range(9), actors=2, gpus=1)
print([rollout.record.mean_memory_weight for rollout in found.rollouts])
"""


class Placed(NearestPolicy):
    """Tells in its weights where it computes: a stand-in for a network on a GPU that this machine need not have."""

    device = "cpu"

    def to(self, device):
        self.device = device

    def explain(self, observations_BD):
        found = super().explain(observations_BD)
        return replace(found, weight_B=0 * found.weight_B + (0.5 if self.device == "cuda" else 0.25))


@pytest.mark.long
def test_actors_share_a_gpu_and_their_policies_compute_there(policies):
    command = [sys.executable, "-c", ON_A_GPU, str(policies["six"])]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.stdout.splitlines() == [str([0.5] * 9)], ended.stderr


def test_policy_of_another_task_is_refused_with_its_own_words(policies, ray_running):
    with pytest.raises(DatasetError, match="takes 45 observation numbers"):
        evaluate(CATALOGUE["door-expert-v1"], policies, SEEDS, actors=1)
