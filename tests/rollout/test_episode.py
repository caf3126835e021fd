import dataclasses
import itertools

import gymnasium as gym
import numpy as np
import pytest

from mcnn_ray.core.normalise import ActionScale, Standardiser
from mcnn_ray.errors import DatasetError, SimulationError
from mcnn_ray.policies.blended import Memories
from mcnn_ray.policies.mlp import MlpPolicy
from mcnn_ray.policies.nearest import NearestPolicy
from mcnn_ray.rollout import episode
from mcnn_ray.rollout.episode import LOCKSTEP, run_episodes
from mcnn_ray.tasks.catalogue import CATALOGUE, find_task
from mcnn_ray.tasks.environments import make_environment
from tests.environments import Uneven

PEN = CATALOGUE["pen-expert-v1"]


def run_episode(policy, task, env, seed, member):
    (rollout,) = run_episodes(policy, task, [env], [seed], member)
    return rollout.record


def nearest_policy(demonstrations):
    standardiser = Standardiser.fit(demonstrations.observations_ND)
    ones = np.ones(demonstrations.actions_NA.shape[1], np.float32)
    obs = standardiser(demonstrations.observations_ND)
    return NearestPolicy(
        {"task": "t"}, standardiser, ActionScale(low_A=-ones, high_A=ones), obs, demonstrations.actions_NA
    )


def blended_policy(demonstrations):
    """Memories and a random network of the paper's size, whose products round."""
    rng, nearest = np.random.default_rng(0), nearest_policy(demonstrations)
    widths = (45, 256, 256, 24)
    layers = [
        (rng.normal(0, fan_in**-0.5, (fan_in, out)).astype(np.float32), rng.normal(0, 0.1, out).astype(np.float32))
        for fan_in, out in itertools.pairwise(widths)
    ]
    memories = Memories(
        observations_MD=nearest.standardiser(demonstrations.observations_ND),
        actions_MA=demonstrations.actions_NA,
        rows_M=np.arange(demonstrations.steps),
        lambda_=1.0,
        L=1.0,
    )
    return MlpPolicy({"task": "t"}, nearest.standardiser, nearest.action_scale, layers, memories)


def test_copying_a_recorded_episode_earns_what_was_recorded(pen_demonstrations):
    """From the same start the nearest demonstration is the episode itself, so its return must come back."""
    env = make_environment(PEN)
    record = run_episode(nearest_policy(pen_demonstrations.subset(6)), PEN, env, seed=2, member="m")
    assert record.episode_return == pytest.approx(pen_demonstrations.returns[2], rel=1e-3)
    assert record.normalised_score == PEN.normalised_score(record.episode_return)
    assert (record.length, record.simulator, record.episode_seed) == (100, "AdroitHandPen-v1", 2)
    assert record.mean_memory_weight == 1.0
    assert record.most_isolated_distance < 0.1


def test_episode_does_not_depend_on_what_the_environment_did_before(pen_demonstrations):
    policy, env = nearest_policy(pen_demonstrations), make_environment(PEN)
    fresh = run_episode(policy, PEN, env, 77, "m")
    run_episode(policy, PEN, env, 78, "m")
    again = run_episode(policy, PEN, env, 77, "m")
    assert dataclasses.replace(fresh, wall_s=0) == dataclasses.replace(again, wall_s=0)


def test_bits_of_an_episode_depend_on_its_place_and_not_on_its_company(pen_demonstrations):
    policy, envs = blended_policy(pen_demonstrations), [make_environment(PEN) for _ in range(LOCKSTEP)]
    together = run_episodes(policy, PEN, envs, range(LOCKSTEP), "m")
    for place in (0, 3, 6, 7):
        (alone,) = run_episodes(policy, PEN, envs, [place], "m", first_place=place)
        assert alone.actions_TA.tobytes() == together[place].actions_TA.tobytes()
        assert alone.record.episode_return == together[place].record.episode_return
    few = run_episodes(policy, PEN, envs, [5, 6], "m", first_place=5)
    assert [one.actions_TA.tobytes() for one in few] == [one.actions_TA.tobytes() for one in together[5:7]]


class Faulty(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (45,))
    action_space = gym.spaces.Box(-1, 1, (24,))

    def __init__(self, fault=None):
        self.fault = fault

    def reset(self, **kwargs):
        if self.fault == "reset":
            raise ValueError("no memory of the start")
        return np.zeros(45), {}

    def step(self, action):
        if self.fault == "step":
            raise KeyError("gripper")
        reward = np.nan if self.fault == "nan" else 1.0
        return np.zeros(45), reward, self.fault not in ("endless",), False, {}


class Remembering(NearestPolicy):
    """Acts on each episode's own past: the mean of its last observations, or a chunk planned from one of them."""

    def __init__(self, kind):
        ones = np.ones(1, np.float32)
        zeros = np.zeros(2, np.float32)
        standardiser, scale = Standardiser(mean_D=zeros, scale_D=zeros + 1), ActionScale(low_A=-ones, high_A=ones)
        super().__init__({"task": "t"}, standardiser, scale, zeros[None], zeros[None, :1])
        self.kind_of_past = kind

    def act(self, observations_BD, state=None):
        pasts = [[] for _ in observations_BD] if state is None else state
        turns = [self.turn(obs_D, past) for obs_D, past in zip(observations_BD, pasts, strict=True)]
        return np.array([[action] for action, _ in turns], np.float32), [past for _, past in turns]

    def turn(self, obs_D, past):
        if self.kind_of_past == "window":
            window = [*past, float(obs_D[0])][-3:]
            return -sum(window) / len(window), window
        plan = past or [-float(obs_D[0]), 0.5, -0.5]
        return plan[0], plan[1:]


@pytest.mark.parametrize("kind", ["window", "chunk"])
def test_past_of_an_episode_stays_its_own_when_others_in_step_end(kind):
    """Of lengths 3 to 6, so the batch shrinks at every step from the third on."""
    envs, seeds = [Uneven() for _ in range(8)], list(range(8))
    together = run_episodes(Remembering(kind), find_task("x@me/p-v0"), envs, seeds, "m")
    assert {rollout.record.length for rollout in together} == {3, 4, 5, 6}
    for rollout, seed in zip(together, seeds, strict=True):
        (alone,) = run_episodes(Remembering(kind), find_task("x@me/p-v0"), [Uneven()], [seed], "m")
        np.testing.assert_array_equal(rollout.actions_TA, alone.actions_TA)
        assert rollout.record.episode_return == alone.record.episode_return


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("reset", "episode seed 5, step 0: ValueError: no memory of the start"),
        ("step", "episode seed 5, step 1: KeyError: 'gripper'"),
        ("nan", "gave NaN or infinite"),
        ("endless", "no end after 50 steps; give the task a horizon"),
    ],
)
def test_faults_of_the_environment_are_told_with_their_place(pen_demonstrations, fault, message, monkeypatch):
    monkeypatch.setattr(episode, "_MAX_STEPS", 50)
    with pytest.raises(SimulationError, match=message):
        run_episode(nearest_policy(pen_demonstrations), find_task("x@me/p-v0"), Faulty(fault), 5, "m")


def test_success_is_unknown_where_the_environment_does_not_report_it(pen_demonstrations):
    task = dataclasses.replace(PEN, reward="environment", environment="x")
    assert run_episode(nearest_policy(pen_demonstrations), task, Faulty(), 5, "m").success is None


def test_policy_with_other_actions_is_refused(pen_demonstrations):
    fewer = dataclasses.replace(pen_demonstrations, actions_NA=pen_demonstrations.actions_NA[:, :10])
    with pytest.raises(DatasetError, match=r"gives 10 action numbers, pen-expert-v1 takes 24"):
        run_episode(nearest_policy(fewer), PEN, make_environment(PEN), 0, "m")


def test_policy_of_another_task_is_refused(pen_demonstrations):
    door = CATALOGUE["door-expert-v1"]
    with pytest.raises(DatasetError, match="takes 45 observation numbers"):
        run_episode(nearest_policy(pen_demonstrations), door, make_environment(door), 0, "m")


@pytest.mark.parametrize(
    ("asked", "done", "expected"),
    [(["b", "a"], ["a"], {"a": True, "b": False}), ({"a"}, None, {"a": False}), (3, 2, None), (None, ["a"], None)],
)
def test_subtasks_are_those_that_the_environment_names_at_the_start(pen_demonstrations, asked, done, expected):
    class Asking(Faulty):
        def reset(self, **kwargs):
            return super().reset(**kwargs)[0], {"tasks_to_complete": asked}

        def step(self, action):
            return *super().step(action)[:4], {"episode_task_completions": done}

    record = run_episode(nearest_policy(pen_demonstrations), PEN, Asking(), 5, "m")
    assert record.subtasks == expected
