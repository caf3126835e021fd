from dataclasses import replace

import numpy as np
import pytest

from mcnn_ray.cli import main
from mcnn_ray.errors import ArtifactError, ConfigError
from mcnn_ray.rollout.episode import run_episodes
from mcnn_ray.rollout.records import read_records, read_rollout, write_rollouts
from mcnn_ray.rollout.replay import replay
from mcnn_ray.tasks.catalogue import CATALOGUE
from mcnn_ray.tasks.environments import make_environment
from tests.rollout.test_episode import nearest_policy

PEN = CATALOGUE["pen-expert-v1"]


@pytest.fixture(scope="module")
def rollouts(pen_demonstrations):
    envs = [make_environment(PEN) for _ in range(3)]
    return run_episodes(nearest_policy(pen_demonstrations), PEN, envs, [7, 8, 9], "m")


@pytest.fixture
def file(rollouts, tmp_path):
    write_rollouts(tmp_path / "episodes.parquet", rollouts)
    return tmp_path / "episodes.parquet"


def test_records_and_actions_come_back_as_they_were_written(rollouts, file):
    unknown = replace(rollouts[0], record=replace(rollouts[0].record, success=None, normalised_score=None))
    write_rollouts(file, [unknown, *rollouts[1:]])
    assert read_records(file) == [unknown.record, *(rollout.record for rollout in rollouts[1:])]
    found = read_rollout(file, 8)
    assert found.record == rollouts[1].record
    np.testing.assert_array_equal(found.actions_TA, rollouts[1].actions_TA)


def test_episode_that_ran_in_step_with_others_replays_to_the_last_bit(file):
    for seed in (7, 8, 9):
        rollout = read_rollout(file, seed)
        again = replay(rollout)
        assert again.episode_return == rollout.record.episode_return
        assert again.same(rollout)
        assert again.other_versions == {}


def test_changed_action_is_noticed(file):
    rollout = read_rollout(file, 7)
    rollout.actions_TA[0] += 0.01
    assert not replay(rollout).same(rollout)


@pytest.mark.parametrize("damage", ["cut", "foreign", "missing"])
def test_file_that_holds_no_episodes_is_told_in_one_sentence(file, damage):
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:200])
    elif damage == "foreign":
        file.write_text("return,seed")
    else:
        file.unlink()
    with pytest.raises(ArtifactError, match="episodes.parquet (is not a readable|does not exist)"):
        read_records(file)


def test_episode_that_is_not_in_the_file_is_told_with_those_that_are(file):
    with pytest.raises(ConfigError, match="no episode of seed 3, but 7 to 9"):
        read_rollout(file, 3)
    with pytest.raises(ConfigError, match="holds 3 episodes; name one by --episode-seed, of 7 to 9"):
        read_rollout(file, None)


def test_command_ends_with_status_1_when_the_return_is_another(file, rollouts, capsys):
    main_ended = lambda *arguments: main(["replay", *map(str, arguments)])  # noqa: E731
    with pytest.raises(SystemExit) as ended:
        main_ended(file, "--episode-seed", 7)
    assert ended.value.code == 0
    wrong = replace(rollouts[0], record=replace(rollouts[0].record, episode_return=1.0))
    write_rollouts(file, [wrong])
    with pytest.raises(SystemExit) as ended:
        main_ended(file)
    assert ended.value.code == 1
    assert "the episode earned 1.0 when it was recorded" in " ".join(capsys.readouterr().err.split())
