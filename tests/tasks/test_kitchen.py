import dataclasses

import gymnasium as gym
import numpy as np
import pytest

from mcnn_ray.core.normalise import ActionScale, Standardiser
from mcnn_ray.policies.nearest import NearestPolicy
from mcnn_ray.rollout.episode import LOCKSTEP, run_episodes
from mcnn_ray.tasks.catalogue import CATALOGUE, KITCHEN_OBJECTS
from mcnn_ray.tasks.environments import make_environment
from mcnn_ray.tasks.kitchen import POSITIONS, objects_done

SCRIPTED, RELAY = CATALOGUE["kitchen-scripted-v0"], CATALOGUE["kitchen-relay-v0"]
PARTS = ("ctrl", "qpos")
STEP_RAD = 0.16  # that a velocity of 1 puts a target away from where the joint is


@pytest.fixture(scope="module")
def env():
    return make_environment(SCRIPTED)


def walk(env, seed, steps=12):
    """Observations and rewards of an episode of random actions, as they were given."""
    rng = np.random.default_rng(0)
    trace, rewards = [env.reset(seed=seed)[0]], []
    for _ in range(steps):
        obs, reward, *_ = env.step(rng.uniform(-1, 1, 9).astype(np.float32))
        trace.append(obs)
        rewards.append(reward)
    return trace, rewards


@pytest.mark.parametrize("name", [name for name in CATALOGUE if name.startswith("kitchen")])
def test_every_kitchen_task_asks_for_its_objects_within_280_steps(name):
    task = CATALOGUE[name]
    env = make_environment(task)
    obs, info = env.reset(seed=0)
    assert set(info["tasks_to_complete"]) == set(task.subtasks)
    assert env.spec.max_episode_steps == 280
    assert obs.shape == env.observation_space.shape == ((POSITIONS,) if name == "kitchen-relay-v0" else (59,))


def test_d4rl_s_variants_ask_for_d4rl_s_objects_and_the_others_for_all_seven():
    assert {task.subtasks for task in (SCRIPTED, RELAY)} == {KITCHEN_OBJECTS}
    assert set(CATALOGUE["kitchen-mixed-v2"].subtasks) == {"bottom burner", "kettle", "light switch", "microwave"}
    assert all(CATALOGUE[f"kitchen-{name}-v2"].reference_max is None for name in ("complete", "partial", "mixed"))


def test_observations_are_the_environment_s_without_goals_and_each_of_its_own(env):
    made = gym.make("FrankaKitchen-v1", disable_env_checker=True)
    trace, _ = walk(env, 3)
    expected, _ = walk(made, 3)
    for obs, plain in zip(trace, expected, strict=True):
        np.testing.assert_array_equal(obs, plain["observation"])
    assert expected[0]["desired_goal"] is expected[1]["desired_goal"]  # why ours must be copies
    for k, obs in enumerate(trace):
        assert not any(np.shares_memory(obs, other) or np.array_equal(obs, other) for other in trace[k + 1 :])


@pytest.mark.parametrize("task", [SCRIPTED, RELAY], ids=lambda task: task.id)
def test_episodes_depend_on_the_seed_alone_noise_included(task):
    env = make_environment(task)
    first, other, again = (np.stack(walk(env, seed)[0]) for seed in (5, 6, 5))
    fresh = np.stack(walk(make_environment(task), 5)[0])
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, fresh)
    assert not np.array_equal(first[0], other[0])


def copying_policy(env):
    """Copies the nearest of 40 random steps: what it does hangs on every bit of the noise."""
    rng = np.random.default_rng(1)
    width = env.observation_space.shape[0]
    seen = np.stack(walk(env, 1, 39)[0]) + rng.normal(0, 0.05, (40, width))
    ones = np.ones(9, np.float32)
    standardiser = Standardiser.fit(seen.astype(np.float32))
    return NearestPolicy(
        {"task": "t"},
        standardiser,
        ActionScale(low_A=-ones, high_A=ones),
        standardiser(seen.astype(np.float32)),
        rng.uniform(-1, 1, (40, 9)).astype(np.float32),
    )


def test_episode_among_eight_in_step_is_the_episode_alone():
    short = dataclasses.replace(SCRIPTED, horizon=40)
    envs = [make_environment(short) for _ in range(LOCKSTEP)]
    policy = copying_policy(envs[0])
    together = run_episodes(policy, short, envs, range(LOCKSTEP), "m")
    assert len({rollout.actions_TA.tobytes() for rollout in together}) > LOCKSTEP // 2
    for place in (0, 5):
        (alone,) = run_episodes(policy, short, envs[3:4], [place], "m", first_place=place)
        assert alone.actions_TA.tobytes() == together[place].actions_TA.tobytes()
        assert dataclasses.replace(alone.record, wall_s=0) == dataclasses.replace(together[place].record, wall_s=0)


class Moved(gym.Wrapper):
    """Has somebody else put objects where they belong, at some steps."""

    def __init__(self, env, moves):
        super().__init__(env)
        self.moves = moves

    def reset(self, **options):
        self.age = 0
        return self.env.reset(**options)

    def step(self, action):
        from gymnasium_robotics.envs.franka_kitchen.kitchen_env import OBS_ELEMENT_GOALS, OBS_ELEMENT_INDICES

        self.age += 1
        for name in self.moves.get(self.age, ()):
            self.env.unwrapped.data.qpos[OBS_ELEMENT_INDICES[name]] = OBS_ELEMENT_GOALS[name]
        return self.env.step(action)


@pytest.mark.parametrize(
    ("task", "steps"), [("kitchen-scripted-v0", 20), ("kitchen-complete-v2", 12)], ids=["seven", "four"]
)
def test_record_tells_which_objects_were_done_and_the_return_is_their_number(task, steps):
    found = dataclasses.replace(CATALOGUE[task], horizon=20)
    moves = {3: ["microwave"], 7: ["hinge cabinet", "slide cabinet"], 12: ["kettle", "light switch"]}
    env = Moved(make_environment(found), moves)
    for _ in range(2):  # what was done in an episode is not taken into the next
        ((rollout,)) = run_episodes(copying_policy(make_environment(found)), found, [env], [4], "m")
        done = {name for names in moves.values() for name in names} & set(found.subtasks)
        assert rollout.record.subtasks == {name: name in done for name in sorted(found.subtasks)}
        assert rollout.record.episode_return == len(done)
        assert rollout.record.length == steps  # four of four end an episode, five of seven do not


def test_objects_done_in_positions_are_those_that_the_environment_pays_for(env):
    moves = {2: ["top burner"], 4: ["bottom burner"], 5: ["kettle"]}
    moved, positions, rewards = Moved(env, moves), [], []
    moved.reset(seed=0)
    for _ in range(6):
        rewards.append(moved.step(np.zeros(9))[1])
        positions.append(moved.unwrapped.data.qpos.copy())
    done = np.maximum.accumulate(objects_done(np.stack(positions), KITCHEN_OBJECTS))
    assert np.diff(done.sum(1), prepend=0).tolist() == rewards == [0, 1, 0, 1, 1, 0]


def test_joint_targets_are_velocities_of_the_environment_s_own_where_those_reach(env):
    """And where they do not, the arm is drawn by what velocities cannot ask for."""
    own = make_environment(RELAY)
    assert np.array_equal(own.action_space.high[7:], np.float32([0.04, 0.04]))
    rng = np.random.default_rng(2)
    env.reset(seed=9), own.reset(seed=9)
    for reach in (0.9, 0.9, 0.9, 3.0):
        last = env.unwrapped.robot_env._last_robot_qpos.copy()
        step = reach * STEP_RAD * rng.choice([-1, 1], 9) * np.array([1] * 7 + [0, 0])
        target = np.clip(last + step, own.action_space.low, own.action_space.high)
        env.step((target - last) / STEP_RAD)
        own.step(target)
        gaps = [np.abs(getattr(env.unwrapped.data, part) - getattr(own.unwrapped.data, part)).max() for part in PARTS]
        assert max(gaps) < 1e-9 if reach < 1 else min(gaps) > 1e-3


def test_targets_out_of_reach_are_held_to_the_robot_s_limits():
    env = make_environment(RELAY)
    obs, _ = env.reset(seed=0)
    env.step(np.array([2.9] * 9))
    ctrl = env.unwrapped.data.ctrl
    np.testing.assert_allclose(ctrl[[0, 2]], obs[[0, 2]] + 0.8)  # 10 rad/s for 0.08 s
    np.testing.assert_allclose(ctrl[7:], 0.04)
