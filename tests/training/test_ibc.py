"""Implicit behaviour cloning: its loss, what it learns, and that it goes on and is shared as other members are."""

import threading
from concurrent.futures import ThreadPoolExecutor

import gymnasium as gym
import numpy as np
import pytest
import torch

from mcnn_ray.config import SweepConfig
from mcnn_ray.core.normalise import ActionScale, Standardiser
from mcnn_ray.data.demonstrations import Demonstrations
from mcnn_ray.errors import ConfigError
from mcnn_ray.member import make_member
from mcnn_ray.policies.base import save_policy
from mcnn_ray.policies.implicit import ImplicitPolicy, _rectified, energies
from mcnn_ray.policies.loading import load_policy
from mcnn_ray.policies.mlp import MlpPolicy, mlp_layers
from mcnn_ray.rollout.episode import run_episodes
from mcnn_ray.sweep.studies import make_study
from mcnn_ray.tasks.catalogue import find_task
from mcnn_ray.training.data import Shard, make_training_data
from mcnn_ray.training.ibc import ImplicitLearner, info_nce
from mcnn_ray.training.learners import make_pack
from mcnn_ray.training.run import Reports, train_pack

RNG = np.random.default_rng(0)
SMALL = {"batch_size": 64, "hidden": (32, 32), "learning_rate": 4e-3}
SEARCH = {"counter_examples": 16, "inference_samples": 256}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def member(steps=40, seed=0, method="ibc", options=None, **changes):
    return make_member(method=method, steps=steps, seed=seed, options=SEARCH | (options or {}), **{**SMALL, **changes})


def random_data(rows=300):
    obs = RNG.standard_normal((rows, 5)).astype(np.float32)
    return make_training_data(obs, np.tanh(obs[:, :3] @ np.diag([1, 0.2, 5]).astype(np.float32)), {})


def test_loss_is_the_negative_log_of_the_demonstrated_action_s_share():
    energy = RNG.standard_normal((6, 9)) * 3
    expected = [-np.log(np.exp(-row[0]) / sum(np.exp(-number) for number in row)) for row in energy]
    np.testing.assert_allclose(info_nce(torch.tensor(energy)).numpy(), expected)


def test_a_step_s_loss_is_that_of_uniform_counter_examples():
    """Against an energy in numpy, and counter-examples of its own: the mean over many is the same."""
    data, one = random_data(100), member(batch_size=100)
    learner = ImplicitLearner(one, data)
    learner.take(0, 50)
    rows = torch.arange(100)
    found = np.mean([learner.learn(rows, 10**9).item() for _ in range(30)])  # so late that nothing is learned any more
    arrays = learner.policy_arrays()
    middle, half = (arrays["box_high"] + arrays["box_low"]) / 2, (arrays["box_high"] - arrays["box_low"]) / 2
    actions_NA = (data.actions_NA.numpy() - middle) / half
    actions = np.concatenate([actions_NA[:, None], RNG.uniform(-1, 1, (100, 1600, 3)).astype(np.float32)], 1)
    layers = [(arrays[f"layers.{i}.weight"], arrays[f"layers.{i}.bias"]) for i in range(3)]
    share = np.exp(-energies(layers, data.obs_ND.numpy(), actions, _rectified))
    others = share[:, 1:].reshape(100, 100, 16).sum(2)
    expected = -np.log(share[:, :1] / (share[:, :1] + others)).mean()
    assert expected < 0.8 * np.log(17)
    assert found == pytest.approx(expected, abs=0.02)


def test_box_is_the_demonstrated_range_and_5_percent_cut_at_the_bounds():
    obs = RNG.standard_normal((100, 2)).astype(np.float32)
    units = np.stack([np.linspace(-0.5, 0.1, 100), np.linspace(-1, 0.98, 100), np.full(100, 0.3)], 1).astype(np.float32)
    arrays = ImplicitLearner(member(), make_training_data(obs, units, {})).policy_arrays()
    np.testing.assert_allclose(arrays["box_low"], [-0.53, -1, 0.3], atol=1e-6)
    np.testing.assert_allclose(arrays["box_high"], [0.13, 1, 0.3], atol=1e-6)


def test_learning_rate_falls_by_1_percent_every_decay_steps():
    learner = ImplicitLearner(member(options={"decay_steps": 5}), random_data())
    learner.take(0, 11)
    assert learner.optimisers[0].param_groups[0]["lr"] == pytest.approx(4e-3 * 0.99**2)


def clone(method, obs, units, steps=500):
    """The policy that a method learns of made numbers, with actions between -1 and 1."""
    standardiser, one = Standardiser.fit(obs), member(steps, method=method)
    scale = ActionScale(low_A=-np.ones(units.shape[1], np.float32), high_A=np.ones(units.shape[1], np.float32))
    pack = make_pack([one], make_training_data(standardiser(obs), units, {}))
    pack.train(steps)
    arrays = pack.parameters(0)
    if method == "ibc":
        return ImplicitPolicy.from_parts({}, standardiser, scale, arrays, dict(one.options))
    return MlpPolicy({}, standardiser, scale, mlp_layers(arrays), None)


def test_at_a_jump_it_takes_a_side_where_bc_takes_the_middle():
    obs = np.random.default_rng(1).uniform(-1, 1, (1000, 1)).astype(np.float32)
    units = np.where(obs > 0, 0.8, -0.8).astype(np.float32)
    near = np.array([[-0.01], [-0.005], [0.005], [0.01]], np.float32)
    off = {method: np.abs(np.abs(clone(method, obs, units).act(near)[0]) - 0.8) for method in ("ibc", "bc")}
    assert off["ibc"].max() < 0.12
    assert off["bc"].min() > 0.25


def test_on_a_circle_it_takes_either_half_where_bc_takes_the_diameter():
    rng = np.random.default_rng(1)
    obs = rng.uniform(-1, 1, (1000, 1)).astype(np.float32)
    units = (np.sqrt(1 - obs**2) * rng.choice([-0.9, 0.9], (1000, 1))).astype(np.float32)
    queries = np.linspace(-0.8, 0.8, 33, dtype=np.float32)[:, None]
    off = {
        method: np.abs(np.hypot(clone(method, obs, units).act(queries)[0] / 0.9, queries) - 1)
        for method in ("ibc", "bc")
    }
    assert off["ibc"].max() < 0.05
    assert np.median(off["bc"]) > 0.4


def balanced(env, episodes, noise):
    """Demonstrations of a linear controller that is pushed around, so that it has something to mend."""
    rng, gains = np.random.default_rng(0), np.array([1.0, 20.0, 2.0, 3.0])
    obs, actions = [], []
    for seed in range(episodes):
        seen, _ = env.reset(seed=seed)
        for _ in range(100):
            obs.append(seen)
            actions.append(np.clip([gains @ seen], -3, 3))
            seen, *_ = env.step(np.clip(actions[-1] + rng.normal(0, noise, 1), -3, 3).astype(np.float32))
    return Demonstrations(
        observations_ND=np.array(obs, np.float32),
        actions_NA=np.array(actions, np.float32),
        rewards_N=np.ones(len(obs), np.float32),
        offsets=np.arange(0, len(obs) + 1, 100),
        source="a linear controller",
    )


TASK = "InvertedPendulum-v5@made/pendulum-v0"


def config(**values):
    base = {"task": TASK, "method": "ibc", "steps": 400, "options": SEARCH, **SMALL, "hidden": list(SMALL["hidden"])}
    return SweepConfig.parse({**base, **values}, "test")


def test_balances_a_pole_from_eight_demonstrations_and_replays_from_its_directory(tmp_path):
    """For 200 steps from eight starts of its own; untrained it lets it fall."""
    env = gym.make("InvertedPendulum-v5", max_episode_steps=200)
    asked, task = config(), find_task(TASK)
    (one,) = asked.members()
    study = make_study(asked, task, balanced(env, 8, noise=1.0))
    pack = make_pack([one], study.training_data(one.data_key, [], "cpu"))
    untrained = study.policy(one, pack.parameters(0))
    pack.train(400)
    policy = study.policy(one, pack.parameters(0))
    save_policy(policy, tmp_path / "policy")
    envs = [gym.make("InvertedPendulum-v5", max_episode_steps=200) for _ in range(8)]
    seeds = range(10_000, 10_008)
    falls, held, replayed = (
        run_episodes(acting, task, envs, seeds, "m") for acting in (untrained, policy, load_policy(tmp_path / "policy"))
    )
    assert max(rollout.record.length for rollout in falls) < 100
    assert [rollout.record.length for rollout in held] == [200] * 8
    for first, second in zip(held, replayed, strict=True):
        np.testing.assert_array_equal(first.actions_TA, second.actions_TA)


def test_resumed_training_is_undisturbed_training_bit_for_bit(tmp_path):
    members, data = [member(seed=0), member(seed=1)], random_data()
    whole = train_pack(members, ["a" * 12, "b" * 12], data, tmp_path / "whole", 0)
    cut = tmp_path / "cut"
    stops = iter([False, True])
    first = train_pack(members, ["a" * 12, "b" * 12], data, cut, 0, Reports(stopping=lambda: next(stops)))
    assert first.pack.step == 20
    resumed = train_pack(members, ["a" * 12, "b" * 12], data, cut, 0)
    np.testing.assert_array_equal(whole.curve_SP, resumed.curve_SP)
    for position in range(2):
        expected = whole.pack.parameters(position)
        for name, array in resumed.pack.parameters(position).items():
            np.testing.assert_array_equal(array, expected[name])


def test_batches_shared_by_two_workers_train_as_one_does():
    barrier, parts, data = threading.Barrier(2), [None, None], random_data()
    turn = threading.Lock()  # torch's global generator is the process's, and these workers are threads

    def train(rank):
        def add(tensor):
            parts[rank] = tensor.clone()
            turn.release()
            barrier.wait()
            tensor.copy_(parts[0] + parts[1])
            barrier.wait()
            turn.acquire()

        with turn:
            return make_pack([member(batch_size=33)], data, Shard(rank=rank, workers=2, sum=add)).train(30)

    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(train, range(2)))
    whole = make_pack([member(batch_size=33)], data).train(30)
    for losses in found:
        np.testing.assert_allclose(losses, whole, atol=2e-5, rtol=0)


def test_actions_that_never_change_come_back_unchanged():
    obs = RNG.standard_normal((200, 3)).astype(np.float32)
    units = np.stack([np.full(200, 0.3), np.tanh(obs[:, 0])], 1).astype(np.float32)
    actions, _ = clone("ibc", obs, units, steps=20).act(obs)
    np.testing.assert_array_equal(actions[:, 0], np.float32(0.3))
    assert np.isfinite(actions).all()


def test_cost_counts_the_parameters_that_there_are():
    one = member(hidden=(24, 16, 16))
    learner = ImplicitLearner(one, random_data())
    cost = ImplicitLearner.cost(one, 5, 3)
    assert cost.parameters == sum(parameter.numel() for parameter in learner.networks.parameters())
    weights = (5 * 24 + 17 * (3 * 24)) * 4 + 17 * (24 * 16 + 16 * 16 + 16) * 6  # C + 1 actions an observation
    assert cost.flop == 64 * weights
    assert cost.act_flop == 2 * 256 * 3 * (3 * 24 + 24 * 16 + 16 * 16 + 16)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"options": {"counter_examples": 0}}, "option counter_examples is 0; it must be a whole number of at least 1"),
        (
            {"options": {"inference_samples": 0}},
            "option inference_samples is 0; it must be a whole number of at least 1",
        ),
        ({"options": {"inference_iterations": 1.5}}, "option inference_iterations is 1.5; it must be a whole number"),
        ({"options": {"noise": -0.1}}, "option noise is -0.1; it must be a number of at least 0"),
        ({"options": {"noise_shrink": 2}}, "option noise_shrink is 2; it must be a number of at least 0 and at most 1"),
        ({"options": {"decay_steps": 0}}, "option decay_steps is 0; it must be a whole number of at least 1"),
        ({"hidden": [0]}, r"hidden is \[0\]"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_sentence(values, message):
    with pytest.raises(ConfigError, match=message) as refused:
        config(**values).members()
    assert "\n" not in str(refused.value)


def test_batch_larger_than_the_demonstrations_is_refused():
    with pytest.raises(ConfigError, match="the batch size 400 is larger than the 300 demonstration steps; use at most"):
        make_pack([member(batch_size=400)], random_data())


def test_paper_preset_has_the_published_values_of_d4rl():
    one = make_member(method="ibc", steps=1)
    assert (one.learning_rate, one.batch_size, one.hidden) == (5e-4, 512, (512,) * 9)
    assert one.option("counter_examples") == 8
    assert one.option("inference_samples") == 512
    assert one.method_label == "ibc"


def test_a_backbone_of_other_methods_leaves_its_layers_alone():
    assert make_member(method="ibc", steps=1, backbone="tests.backbones.Deep").hidden == (512,) * 9
