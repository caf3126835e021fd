import numpy as np
import pytest

from mcnn_ray.data.collect import collect_episodes
from mcnn_ray.data.kitchen_arm import POSTURE_7, Arm
from mcnn_ray.data.kitchen_expert import KitchenExpert
from mcnn_ray.data.kitchen_skills import SKILLS
from mcnn_ray.errors import ConfigError
from mcnn_ray.tasks.catalogue import CATALOGUE, KITCHEN_OBJECTS
from mcnn_ray.tasks.environments import make_environment

TASK = CATALOGUE["kitchen-scripted-v0"]


@pytest.fixture(scope="module")
def env():
    return make_environment(TASK)


@pytest.fixture(scope="module")
def recorded():
    return collect_episodes(TASK, 2, seed=0)


def drawn_order(env, seed):
    expert = KitchenExpert(TASK, env)
    env.reset(seed=seed)
    expert.begin(np.random.default_rng((seed, 1)))
    return expert.order


def test_at_least_four_objects_are_done_in_an_episode(recorded):
    assert recorded.returns.min() >= 4
    assert recorded.lengths.max() <= 280


def test_actions_are_within_bounds_and_noisy(recorded):
    assert np.abs(recorded.actions_NA).max() <= 1
    assert len(np.unique(recorded.actions_NA[:, 0])) > len(recorded.actions_NA) / 2


def test_an_episode_repeats_with_its_seed_whatever_was_recorded_before(recorded):
    again = collect_episodes(TASK, 1, seed=1)
    np.testing.assert_array_equal(again.actions_NA, recorded.actions_NA[recorded.offsets[1] :])
    np.testing.assert_array_equal(again.observations_ND, recorded.observations_ND[recorded.offsets[1] :])


def test_orders_differ_between_seeds_and_hidden_objects_are_left_out(env):
    orders = [drawn_order(env, seed) for seed in range(60)]
    assert len(set(orders)) > 40
    assert {order[0] for order in orders} == set(KITCHEN_OBJECTS) == set(SKILLS)
    for order in orders:
        assert len(order) >= 4
        opened = order.index("hinge cabinet")
        assert not set(order[opened:]) & {"slide cabinet", "bottom burner", "top burner"}


def test_inverse_kinematics_reaches_poses_around_the_posture_to_a_millimetre(env):
    arm, rng = Arm(env.unwrapped.robot_env), np.random.default_rng(0)
    for _ in range(40):
        goal_7 = np.clip(POSTURE_7 + rng.uniform(-0.6, 0.6, 7), arm.lower_7, arm.upper_7)
        position, axes = arm.pose(goal_7)
        reached_7 = arm.solve(POSTURE_7, (position, axes), iterations=60)
        tip, turned = arm.pose(reached_7)
        assert np.linalg.norm(tip - position) < 1e-3
        assert np.abs(turned - axes).max() < 1e-2
        assert np.all(reached_7 >= arm.lower_7) and np.all(reached_7 <= arm.upper_7)


def test_the_simulation_is_left_as_it_was_by_looking(env):
    env.reset(seed=0)
    data = env.unwrapped.robot_env.data
    before = data.qpos.copy(), data.qvel.copy(), data.ctrl.copy(), data.site_xpos.copy()
    expert = KitchenExpert(TASK, env)
    expert.begin(np.random.default_rng(0))
    for _ in range(10):
        expert.act(None)
    for then, now in zip(before, (data.qpos, data.qvel, data.ctrl, data.site_xpos), strict=True):
        np.testing.assert_array_equal(then, now)


@pytest.mark.parametrize("name", ["kitchen-relay-v0", "door-expert-v1"])
def test_tasks_with_other_actions_are_refused(name):
    with pytest.raises(ConfigError, match=f"joint velocities in FrankaKitchen, and {name} .* kitchen-scripted-v0"):
        collect_episodes(CATALOGUE[name], 1, expert="kitchen")


def test_a_task_of_fewer_objects_has_only_those_done(env):
    task = CATALOGUE["kitchen-mixed-v2"]
    env = make_environment(task)
    expert = KitchenExpert(task, env)
    expert.begin(np.random.default_rng(0))
    assert set(expert.order) == set(task.subtasks)
