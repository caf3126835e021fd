import functools
import json
from dataclasses import replace

import pytest

from mcnn_ray.data.collect import collect_episodes
from mcnn_ray.rollout.episode import run_episodes
from mcnn_ray.rollout.records import read_rollout, write_rollouts
from mcnn_ray.rollout.replay import replay, replay_steps
from mcnn_ray.tasks.catalogue import CATALOGUE
from mcnn_ray.tasks.environments import make_environment
from tests.rollout.test_episode import nearest_policy

PEN, DOOR = CATALOGUE["pen-expert-v1"], CATALOGUE["door-expert-v1"]


@pytest.fixture(scope="module")
def rollouts(pen_demonstrations):
    envs = [make_environment(PEN) for _ in range(3)]
    return run_episodes(nearest_policy(pen_demonstrations), PEN, envs, [7, 8, 9], "m")


@pytest.fixture
def file(rollouts, tmp_path):
    write_rollouts(tmp_path / "episodes.parquet", rollouts)
    return tmp_path / "episodes.parquet"


@pytest.fixture
def mcnn_replay(mcnn):
    return functools.partial(mcnn, "replay")


def test_episode_that_ran_in_step_with_others_replays_to_the_last_bit(file):
    for seed in (7, 8, 9):
        rollout = read_rollout(file, seed)
        again = replay(rollout)
        assert again.episode_return == rollout.record.episode_return
        assert again.same(rollout)
        assert again.other_versions == {}


def test_episode_of_another_task_replays_to_the_last_bit(tmp_path):
    envs = [make_environment(DOOR) for _ in range(2)]
    ran = run_episodes(nearest_policy(collect_episodes(DOOR, 2, seed=0)), DOOR, envs, [0, 5], "m")
    write_rollouts(tmp_path / "episodes.parquet", ran)
    rollout = read_rollout(tmp_path / "episodes.parquet", 5)
    assert (rollout.record.task, rollout.record.length) == ("door-expert-v1", 200)
    assert replay(rollout).same(rollout)


def test_steps_tell_what_has_come_of_it_so_far(rollouts):
    env = make_environment(PEN)
    found = list(replay_steps(rollouts[0], env))
    assert [again.length for again in found] == list(range(101))
    assert found[0].episode_return == 0
    assert found[-1].same(rollouts[0])
    assert sum(again.same(rollouts[0]) for again in found) == 1


def test_changed_and_missing_actions_are_noticed(file):
    rollout = read_rollout(file, 7)
    shorter = replace(rollout, actions_TA=rollout.actions_TA[:-1])
    assert not replay(shorter).same(rollout)
    rollout.actions_TA[0] += 0.01
    assert not replay(rollout).same(rollout)


def test_command_gives_recorded_and_replayed_numbers(file, rollouts, mcnn_replay):
    status, out, _ = mcnn_replay(file, "--episode-seed", 7, "--json")
    facts = json.loads(out)
    assert status == 0
    assert facts["return"] == facts["recorded_return"] == rollouts[0].record.episode_return
    assert facts["same"] is True


def test_command_ends_with_status_1_when_the_return_is_another_and_names_other_versions(rollouts, file, mcnn_replay):
    record = rollouts[0].record
    write_rollouts(file, [replace(rollouts[0], record=replace(record, episode_return=1.0))])
    status, _, err = mcnn_replay(file)
    assert status == 1
    assert "earned 1.0 when it was recorded" in err
    assert "with the same versions" in err
    older = replace(record, episode_return=1.0, versions={**record.versions, "mujoco": "2.9"})
    write_rollouts(file, [replace(rollouts[0], record=older)])
    assert f"mujoco 2.9, here {record.versions['mujoco']}" in mcnn_replay(file)[2]


def test_what_cannot_be_replayed_is_told_in_one_sentence(rollouts, file, mcnn_replay, tmp_path):
    assert mcnn_replay("none.parquet")[::2] == (1, "error: none.parquet does not exist")
    status, _, err = mcnn_replay(file, "--episode-seed", 3)
    assert (status, err) == (2, f"error: {file} holds no episode of seed 3, but 7 to 9")
    foreign = replace(rollouts[0], record=replace(rollouts[0].record, task="pen-expret-v1"))
    write_rollouts(file, [foreign])
    status, _, err = mcnn_replay(file)
    assert status == 2
    assert "did you mean 'pen-expert-v1'?" in err
