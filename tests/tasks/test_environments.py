import ctypes.util
import dataclasses
import os
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest

from mcnn_ray.errors import ConfigError, SimulationError
from mcnn_ray.tasks.adroit import D4RLReward, hand_to_object_coefficient
from mcnn_ray.tasks.catalogue import ADROIT_NAMES, CATALOGUE, find_task
from mcnn_ray.tasks.environments import environment_id, make_environment

PALM = {
    "door": lambda o: o[35:38],
    "hammer": lambda o: o[33:36] - o[36:39],
    "relocate": lambda o: o[30:33],
}


class ShiftedReward(gym.Wrapper):
    """Adds a multiple of the hand-to-object distance: an environment of another version."""

    def __init__(self, env, name, coefficient):
        super().__init__(env)
        inner, palm = env.unwrapped, PALM[name]
        original = inner.step

        def step(action):
            obs, reward, *rest = original(action)
            return obs, float(np.squeeze(reward)) + coefficient * np.linalg.norm(palm(obs)), *rest

        inner.step = step


def raw(name):
    make_environment(CATALOGUE[f"{name}-expert-v1"])  # registers
    return gym.make(environment_id(CATALOGUE[f"{name}-expert-v1"]), disable_env_checker=True)


@pytest.mark.parametrize("name", PALM)
def test_wrapped_reward_pays_minus_a_tenth_per_metre_whatever_the_installed_sign(name):
    family = CATALOGUE[f"{name}-expert-v1"].environment
    for coefficient in (0.0, -0.2, 0.2):
        env = ShiftedReward(raw(name), name, coefficient)
        measured = hand_to_object_coefficient(env, family)
        if abs(abs(measured) - 0.1) > 1e-6:
            with pytest.raises(SimulationError, match="pays"):
                D4RLReward(env, family)
            continue
        wrapped = D4RLReward(env, family)
        assert hand_to_object_coefficient(env, family) + wrapped.correction == pytest.approx(-0.1)


def test_pen_reward_is_left_alone():
    env = make_environment(CATALOGUE["pen-expert-v1"])
    plain = raw("pen")
    for e in (env, plain):
        e.reset(seed=3)
    action = np.full(24, 0.1, np.float32)
    assert env.step(action)[1] == plain.step(action)[1]


def test_door_reward_is_d4rl_s_formula():
    """D4RL, hand_manipulation_suite/door_v0.py: the terms of the dense reward."""
    env = make_environment(CATALOGUE["door-expert-v1"])
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(50):
        obs, reward, *_ = env.step(rng.uniform(-1, 1, 28).astype(np.float32))
        hinge = obs[28]
        expected = -0.1 * np.linalg.norm(obs[29:32] - obs[32:35]) - 0.1 * (hinge - 1.57) ** 2
        expected += -1e-5 * np.sum(env.unwrapped.data.qvel**2) + 2 * (hinge > 0.2) + 8 * (hinge > 1.0)
        assert reward == pytest.approx(expected + 10 * (hinge > 1.35), abs=1e-6)
        assert isinstance(reward, float)


@pytest.mark.parametrize("name", ADROIT_NAMES)
def test_episodes_last_d4rl_s_horizon_and_depend_on_the_seed_alone(name):
    task = CATALOGUE[f"{name}-expert-v1"]
    env = make_environment(task)
    rng = np.random.default_rng(1)
    actions = rng.uniform(-1, 1, (task.horizon, env.action_space.shape[0])).astype(np.float32)

    def replay(seed):
        obs, _ = env.reset(seed=seed)
        trace = [obs]
        for step, action in enumerate(actions):
            obs, reward, terminated, truncated, _ = env.step(action)
            trace.append(np.append(obs, reward))
            assert not terminated
            assert truncated == (step == task.horizon - 1)
        return np.concatenate(trace)

    first, other, again = replay(5), replay(6), replay(5)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_human_door_replays_give_the_recorded_returns(shared_data):
    data = np.load(shared_data / "adroit_door_human.npz", allow_pickle=False)
    stops = np.cumsum(data["episode_lengths"])
    # The demonstrations last up to 300 steps, D4RL's evaluation 200.
    env = make_environment(dataclasses.replace(CATALOGUE["door-human-v1"], horizon=300))
    errors = []
    for k, (stop, length) in enumerate(zip(stops, data["episode_lengths"], strict=True)):
        env.reset(seed=0)
        env.unwrapped.set_env_state(
            {"qpos": data["init_qpos"][k], "qvel": data["init_qvel"][k], "door_body_pos": data["init_door_body_pos"][k]}
        )
        replayed = sum(env.step(action)[1] for action in data["actions"][stop - length : stop])
        recorded = data["rewards"][stop - length : stop].sum()
        errors.append(abs(replayed - recorded) / abs(recorded))
    assert sum(error < 0.05 for error in errors) >= 22
    assert sum(error < 0.001 for error in errors) >= 10


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Pendulm-v1@me/p-v0", "did you mean 'Pendulum-v1'"),
        ("no_such_module:Env-v0@me/p-v0", "no environment 'no_such_module:Env-v0'"),
        ("CartPole-v1@me/p-v0", r"action space Discrete\(2\)"),
    ],
)
def test_environments_that_cannot_be_used_are_refused(name, message):
    with pytest.raises(ConfigError, match=message):
        make_environment(find_task(name))


class Unbounded(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Box(-np.inf, np.inf, (1,))


class Broken(gym.Env):
    def __init__(self, **kwargs):
        raise RuntimeError("no licence")


def test_unbounded_actions_and_failing_constructors_are_refused():
    gym.register("tests/Unbounded-v0", Unbounded)
    gym.register("tests/Broken-v0", Broken)
    with pytest.raises(ConfigError, match="without bounds"):
        make_environment(find_task("tests/Unbounded-v0@me/p-v0"))
    with pytest.raises(SimulationError, match="RuntimeError: no licence"):
        make_environment(find_task("tests/Broken-v0@me/p-v0"))


def test_opengl_that_is_not_there_is_one_sentence():
    if ctypes.util.find_library("OSMesa"):
        pytest.skip("OSMesa is installed here")
    command = [sys.executable, "-m", "mcnn_ray", "data", "collect", "pen-expert-v1", "--dataset", "mcnn/pen/never-v0"]
    # Another test that drew has chosen one for this process.
    environment = {name: value for name, value in os.environ.items() if name != "PYOPENGL_PLATFORM"}
    ended = subprocess.run(
        command, env={**environment, "MUJOCO_GL": "osmesa"}, capture_output=True, text=True, timeout=120
    )
    told = " ".join(ended.stderr.split())
    assert ended.returncode == 1
    assert "Traceback" not in told
    assert "the OpenGL that MUJOCO_GL=osmesa asks for" in told
    assert "or unset MUJOCO_GL" in told


def test_dict_observations_are_flattened():
    env = make_environment(find_task("FetchReach-v4@me/p-v0"))
    assert env.reset(seed=0)[0].shape == env.observation_space.shape == (16,)
