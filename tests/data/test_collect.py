import numpy as np
import pytest

from mcnn_ray.data.checks import check_demonstrations
from mcnn_ray.data.collect import collect_episodes
from mcnn_ray.data.demonstrations import Demonstrations
from mcnn_ray.errors import ConfigError, DatasetError
from mcnn_ray.tasks.catalogue import CATALOGUE, find_task

PEN = CATALOGUE["pen-expert-v1"]


def test_recording_repeats_with_its_seed_and_differs_with_another(pen_demonstrations):
    again = collect_episodes(PEN, 2, seed=0)
    np.testing.assert_array_equal(again.observations_ND, pen_demonstrations.observations_ND[:200])
    np.testing.assert_array_equal(again.actions_NA, pen_demonstrations.actions_NA[:200])
    assert collect_episodes(PEN, 2, seed=7).sha256 != again.sha256


@pytest.mark.parametrize("name", ["hammer", "door", "relocate"])
def test_recorded_experts_earn_what_d4rl_s_did(name):
    """D4RL's reference maxima are its expert's mean returns; 8 episodes of a noisy expert come within a fifth."""
    task = CATALOGUE[f"{name}-expert-v1"]
    recorded = collect_episodes(task, 8, seed=500)
    assert np.mean([task.normalised_score(value) for value in recorded.returns]) > 80


def test_noise_can_be_left_out():
    quiet = collect_episodes(PEN, 1, noise=False)
    assert quiet.sha256 != collect_episodes(PEN, 1).sha256
    assert quiet.provenance["noise"] is False


def test_expert_of_another_task_is_refused():
    with pytest.raises(ConfigError, match="use the expert 'pen'"):
        collect_episodes(PEN, 1, expert="door")


def test_task_without_expert_and_no_episodes_are_refused():
    with pytest.raises(ConfigError, match="no expert is known"):
        collect_episodes(find_task("Pendulum-v1@me/pendulum-v0"), 1)
    with pytest.raises(ConfigError, match="at least 1"):
        collect_episodes(PEN, 0)


def demonstrations(obs_dim=45, action_dim=24, lengths=(50, 50), constant=(), action=0.5):
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((sum(lengths), obs_dim)).astype(np.float32)
    obs[:, list(constant)] = 1.0
    return Demonstrations(
        observations_ND=obs,
        actions_NA=np.full((len(obs), action_dim), action, dtype=np.float32),
        rewards_N=np.zeros(len(obs), np.float32),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        source="made",
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"obs_dim": 39}, "made has 39 observation numbers, the environment of pen-expert-v1 has 45"),
        ({"action_dim": 28}, "made has 28 action numbers, the environment 24"),
        ({"lengths": (100,)}, "made has 1 episode, at least 2"),
        ({"constant": (3, 7)}, r"2 of 45 observation columns never change \(3, 7\)"),
        ({"constant": range(45)}, "no observation column ever changes"),
        ({"action": 1.5}, "100 of 100 actions lie outside"),
    ],
)
def test_demonstrations_that_cannot_be_learned_from_are_refused(changes, message):
    with pytest.raises(DatasetError, match=message):
        check_demonstrations(demonstrations(**changes), PEN)


def test_what_is_refused_can_be_asked_for():
    data = demonstrations(lengths=(100,), constant=(3,), action=1.5)
    checked, space = check_demonstrations(data, PEN, clip_actions=True, constant_columns="ignore", min_episodes=1)
    assert checked.actions_NA.max() == 1.0
    assert space.shape == (24,)


def test_episodes_of_too_small_a_return_are_left_out_and_others_take_their_place():
    every = collect_episodes(PEN, 6, seed=0)
    bar = float(np.median(every.returns))
    chosen = collect_episodes(PEN, 3, seed=0, least_return=bar)
    np.testing.assert_array_equal(chosen.returns, every.returns[every.returns >= bar])
    passed_over = np.flatnonzero(every.returns < bar)
    last = np.flatnonzero(every.returns >= bar)[-1]
    assert chosen.provenance["seeds_left_out"] == passed_over[passed_over < last].tolist()


def test_return_that_no_episode_reaches_is_refused():
    with pytest.raises(ConfigError, match="only 0 reached the return 1e"):
        collect_episodes(PEN, 1, least_return=1e9)
