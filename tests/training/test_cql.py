import logging
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch.nn.functional import linear

from mcnn_ray.artifacts import read_tensors
from mcnn_ray.config import SweepConfig
from mcnn_ray.data.demonstrations import Demonstrations
from mcnn_ray.errors import ConfigError, DatasetError
from mcnn_ray.member import make_member
from mcnn_ray.policies.base import save_policy
from mcnn_ray.policies.loading import load_policy
from mcnn_ray.rollout.episode import run_episodes
from mcnn_ray.sweep.studies import make_study
from mcnn_ray.tasks.catalogue import CATALOGUE, find_task
from mcnn_ray.tasks.environments import make_environment
from mcnn_ray.training.cql import CqlLearner
from mcnn_ray.training.data import Shard, make_training_data
from mcnn_ray.training.learner import LearnerPack
from mcnn_ray.training.learners import make_pack
from mcnn_ray.training.run import train_pack
from tests.training.test_run import Interrupted, stop_at

OFFSETS, SUCCESSES = np.array([0, 30, 50, 90]), np.array([True, False, True])


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def training_data(successes=SUCCESSES):
    rng = np.random.default_rng(0)
    obs_ND, units_NA = rng.normal(size=(90, 5)), rng.uniform(-1, 1, (90, 3))
    return make_training_data(
        obs_ND.astype(np.float32), units_NA.astype(np.float32), {}, offsets=OFFSETS, successes=successes
    )


def member(seed=0, steps=20, batch_size=16, learning_rate=1e-3, hidden=(16, 16), **options):
    return make_member(
        method="cql-sparse",
        seed=seed,
        steps=steps,
        batch_size=batch_size,
        learning_rate=learning_rate,
        hidden=hidden,
        options={"action_samples": 3, **options},
    )


class Formulas:
    """One learner's steps in double precision: the paper's formulas, one drawn action after another."""

    def __init__(self, learner):
        state = learner.networks.state_dict()
        self.all = {key: value.double().clone() for key, value in state.items()}
        self.own = {
            part: {key: self.all[key].requires_grad_() for key in self.all if key.startswith(part)}
            for part in ("scales.alpha", "critics", "scales.temperature", "actor")
        }
        self.tuned = learner.member.option("lagrange") > 0
        self.threshold = learner.member.option("lagrange")
        slow, fast = learner.member.learning_rate, learner.member.option("critic_learning_rate")
        self.optimisers = {
            part: torch.optim.Adam(values.values(), lr=fast if part in ("critics", "scales.alpha") else slow)
            for part, values in self.own.items()
        }

    def layer(self, name, inputs):
        return linear(inputs, self.all[f"{name}.weight"], self.all[f"{name}.bias"])

    def value(self, which, critic, obs, action):
        hidden = torch.cat([obs, action], 1)
        for i in (0, 2):
            hidden = self.layer(f"{which}.{critic}.{i}", hidden).relu()
        return self.layer(f"{which}.{critic}.4", hidden)[:, 0]

    def gaussian(self, obs):
        for i in (0, 2):
            obs = self.layer(f"actor.trunk.{i}", obs).relu()
        return torch.distributions.Normal(
            self.layer("actor.mean", obs), self.layer("actor.log_deviation", obs).clamp(-20, 2).exp()
        )

    def act(self, obs, noise):
        """An action and its log-density by the change of variables."""
        gaussian = self.gaussian(obs)
        raw = gaussian.mean + gaussian.stddev * noise
        action = raw.tanh()
        return action, (gaussian.log_prob(raw) - (1 - action**2).log()).sum(1)

    def descend(self, part, loss):
        self.optimisers[part].zero_grad()
        loss.backward()
        self.optimisers[part].step()
        return loss.item()

    def step(self, obs, action, next_obs, reward, end, noise):
        here, there, uniform, own = (array.double() for array in noise)
        drawn = [self.act(obs, z) for z in here] + [self.act(next_obs, z) for z in there]
        drawn += [(u, torch.full((len(u),), math.log(0.5 ** u.shape[1]))) for u in uniform.transpose(0, 1)]
        drawn = [(sample.detach(), log_density.detach()) for sample, log_density in drawn]
        best = self.gaussian(next_obs).mean.tanh().detach()
        following = torch.minimum(*(self.value("targets", critic, next_obs, best) for critic in (0, 1)))
        target = (reward + 0.99 * (1 - end) * following).detach()
        errors, gaps = [], []
        for critic in (0, 1):
            mass = sum((self.value("critics", critic, obs, u) - p).exp() for u, p in drawn)
            value = self.value("critics", critic, obs, action)
            errors.append(((value - target) ** 2).mean())
            gaps.append((mass.log() - value).mean())
        found = {}
        log_alpha = self.all["scales.alpha"]
        if self.tuned:
            gap = (gaps[0] + gaps[1]).detach() / 2
            found["alpha"] = self.descend("scales.alpha", -(log_alpha.exp() * (gap - self.threshold)).sum())
        conservative = log_alpha.exp().item() * (gaps[0] + gaps[1] - 2 * self.threshold)
        found |= {"td": (errors[0] + errors[1]).item(), "conservative": conservative.item()}
        self.descend("critics", errors[0] + errors[1] + conservative)
        sample, log_density = self.act(obs, own)
        log_temperature = self.all["scales.temperature"]
        excess = (log_density.detach() - action.shape[1]).mean()
        found["temperature"] = self.descend("scales.temperature", -(log_temperature.exp() * excess).sum())
        value = torch.minimum(*(self.value("critics", critic, obs, sample) for critic in (0, 1)))
        found["actor"] = self.descend("actor", (log_temperature.exp().item() * log_density - value).mean())
        for key in self.all:
            if key.startswith("targets"):
                self.all[key] = 0.995 * self.all[key] + 0.005 * self.all[key.replace("targets", "critics")].detach()
        return found


@pytest.mark.parametrize("options", [{}, {"lagrange": 0, "alpha": 2}], ids=["alpha tuned", "alpha fixed"])
def test_every_loss_and_weight_is_that_of_the_formulas(options):
    data = training_data()
    learner = CqlLearner(member(critic_learning_rate=1e-2, **options), data)
    formulas = Formulas(learner)
    # The known transitions, written out: all rows but the last of the failed episode.
    known = [row for row in range(90) if row != 49]
    for step in range(10):
        drawn = torch.randint(len(known), (16,), generator=torch.Generator().manual_seed(step))
        drawn[0], drawn[1] = known.index(29), known.index(89)
        torch.manual_seed(step)
        noise = [torch.randn(3, 16, 3), torch.randn(3, 16, 3), torch.empty(16, 3, 3).uniform_(-1, 1)]
        noise.append(torch.randn(16, 3))
        torch.manual_seed(step)
        loss = learner.learn(drawn, step)
        rows = np.array(known)[drawn]
        end = torch.tensor([float(row in (29, 89)) for row in rows]).double()
        obs_ND, actions_NA = data.obs_ND.double(), data.actions_NA.double()
        next_rows = [row if row in (29, 89) else row + 1 for row in rows]
        expected = formulas.step(obs_ND[rows], actions_NA[rows], obs_ND[next_rows], end, end, noise)
        assert {name: part.item() for name, part in learner.parts.items()} == pytest.approx(
            expected, rel=1e-4, abs=1e-4
        )
        assert loss.item() == pytest.approx(expected["td"] + expected["conservative"], rel=1e-4)
    for name, array in learner.networks.state_dict().items():
        np.testing.assert_allclose(array, formulas.all[name].detach(), atol=1e-4, err_msg=name)


def test_only_successful_ends_earn_and_ends_of_failures_are_never_drawn():
    learner = CqlLearner(member(), training_data())
    assert learner.choices == 89
    assert 49 not in learner._rows_K
    assert learner._rows_K[learner._ends_K > 0].tolist() == [29, 89]


@pytest.mark.parametrize(("lagrange", "direction"), [(0.1, 1), (1000.0, -1), (0.0, 0)])
def test_alpha_rises_above_its_threshold_and_falls_below(lagrange, direction):
    learner = CqlLearner(member(lagrange=lagrange), training_data())
    learner.take(0, 5)
    assert np.sign(round(learner.log_alpha.exp().item() - 5.0, 6)) == direction


def test_shares_of_two_workers_train_as_one():
    """Workers are threads, of which one computes at a time: they share the random numbers of torch."""
    barrier, turn, parts = threading.Barrier(2), threading.Lock(), [None, None]

    def meet():
        turn.release()
        barrier.wait(60)
        turn.acquire()

    def train(rank):
        def add(tensor):
            parts[rank] = tensor.clone()
            meet()
            tensor.copy_(parts[0] + parts[1])
            meet()

        with turn:
            pack = LearnerPack(
                [member(batch_size=15)], training_data(), CqlLearner, Shard(rank=rank, workers=2, sum=add)
            )
            return pack.train(10), pack.parameters(0)

    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(train, range(2)))
    whole = LearnerPack([member(batch_size=15)], training_data(), CqlLearner)
    losses = whole.train(10)
    for shared, parameters in found:
        np.testing.assert_allclose(shared, losses, rtol=1e-4)
        for name, array in whole.parameters(0).items():
            np.testing.assert_allclose(parameters[name], array, atol=1e-4)


MEMBERS, IDS = [member(seed=0), member(seed=1, lagrange=0)], ["a", "b"]


def test_resumed_pack_continues_bit_for_bit():
    whole = LearnerPack(MEMBERS, training_data(), CqlLearner)
    expected = whole.train(12)
    half = LearnerPack(MEMBERS, training_data(), CqlLearner)
    half.train(5)
    resumed = LearnerPack(MEMBERS, training_data(), CqlLearner)
    resumed.load_state(half.state())
    np.testing.assert_array_equal(resumed.train(7), expected[5:])
    for name, array in whole.state().items():
        np.testing.assert_array_equal(array, resumed.state()[name])


def test_interrupted_run_continues_to_the_bits_of_an_undisturbed_one(tmp_path):
    whole = train_pack(MEMBERS, IDS, training_data(), tmp_path / "a", 0)
    with pytest.raises(Interrupted):
        train_pack(MEMBERS, IDS, training_data(), tmp_path / "b", 0, stop_at(10))
    resumed = train_pack(MEMBERS, IDS, training_data(), tmp_path / "b", 0)
    np.testing.assert_array_equal(resumed.curve_SP, whole.curve_SP)
    for name, array in whole.pack.parameters(1).items():
        np.testing.assert_array_equal(array, resumed.pack.parameters(1)[name])


def test_member_whose_values_overflow_leaves_with_a_reason(tmp_path):
    members = [member(seed=0), member(seed=1, critic_learning_rate=1e30)]
    trained = train_pack(members, ["a", "b"], training_data(), tmp_path, 0)
    assert list(trained.failures) == ["b"]
    assert trained.positions == [0]


CAR = "MountainCarContinuous-v0@me/car/tests-v0"


def drives(good=8, bad=8):
    """Drives that push the way the car rolls, which reaches the goal, and others that brake, cut after 200 steps."""
    env = gym.make("MountainCarContinuous-v0")
    observations, actions, offsets, successes = [], [], [0], []
    for episode in range(good + bad):
        rng, (obs, _) = np.random.default_rng(episode), env.reset(seed=episode)
        reached = False
        while not reached and len(actions) < offsets[-1] + 200:
            way = np.sign(obs[1]) if episode < good else -np.sign(obs[1])
            action = np.clip(way + 0.3 * rng.normal(size=1), -1, 1).astype(np.float32)
            observations.append(obs)
            actions.append(action)
            obs, _, reached, _, _ = env.step(action)
        offsets.append(len(actions))
        successes.append(reached)
    assert successes == [True] * good + [False] * bad
    return Demonstrations(
        observations_ND=np.array(observations, dtype=np.float32),
        actions_NA=np.array(actions),
        rewards_N=np.zeros(len(actions), dtype=np.float32),
        offsets=np.array(offsets),
        successes_E=np.array(successes),
        source="drives",
    )


def test_it_reaches_the_goal_where_half_the_demonstrations_do_not_and_cloning_fails():
    task = find_task(CAR)
    study = make_study(
        SweepConfig.parse({"task": CAR, "method": "cql-sparse", "batch_size": 64}, "test"), task, drives()
    )
    envs, reached = [make_environment(task) for _ in range(8)], {}
    ours = member(steps=200, batch_size=64, learning_rate=3e-3, hidden=(32, 32), critic_learning_rate=3e-3)
    cloning = make_member(method="bc", steps=1000, batch_size=64, hidden=(32, 32), learning_rate=3e-3)
    for one in (ours, cloning):
        pack = make_pack([one], study.training_data(one.data_key, (), "cpu"))
        pack.train(one.steps)
        rollouts = run_episodes(study.policy(one, pack.parameters(0)), task, envs, range(1000, 1008), "")
        reached[one.method] = sum(rollout.record.episode_return > 0 for rollout in rollouts)
    assert reached["cql-sparse"] == 8
    assert reached["bc"] <= 4


def config(**values):
    return SweepConfig.parse({"task": "pen-expert-v1", "method": "cql-sparse", "steps": 1, **values}, "test")


def pen_study(demonstrations, **values):
    return make_study(config(**values), CATALOGUE["pen-expert-v1"], demonstrations)


def test_policy_is_the_actor_s_mean_saves_loads_and_replays_identically(pen_demonstrations, tmp_path):
    study, one = pen_study(pen_demonstrations), member(batch_size=32)
    pack = LearnerPack([one], study.training_data(one.data_key, (), "cpu"), CqlLearner)
    pack.train(5)
    policy = study.policy(one, pack.parameters(0))
    with torch.no_grad():
        mean_NA, _ = pack._learners[0].actor(torch.from_numpy(study.obs_ND))
    actions_NA, _ = policy.act(study.demonstrations.observations_ND)
    np.testing.assert_allclose(study.action_scale.to_unit(actions_NA), mean_NA.tanh(), atol=1e-5)
    save_policy(policy, tmp_path / "policy")
    loaded = load_policy(tmp_path / "policy")
    assert {name[:6] for name in read_tensors(tmp_path / "policy" / "policy.safetensors")} == {
        "layers",
        "observ",
        "action",
    }
    envs = [make_environment(study.task) for _ in range(2)]
    first, again = (run_episodes(one, study.task, envs, (7, 8), "") for one in (policy, loaded))
    for rollout, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(rollout.actions_TA, other.actions_TA)
        assert rollout.record.episode_return == other.record.episode_return


def test_demonstrations_without_a_success_are_refused_before_training(pen_demonstrations):
    failures = replace(pen_demonstrations, successes_E=np.zeros(6, dtype=bool))
    with pytest.raises(DatasetError, match="none of 6 demonstrations succeeded, so cql-sparse has no reward"):
        pen_study(failures)
    make_study(config(method="bc"), CATALOGUE["pen-expert-v1"], failures)
    with pytest.raises(ConfigError, match="no demonstration succeeded"):
        CqlLearner(member(), training_data(np.zeros(3, dtype=bool)))


def test_successes_that_were_not_recorded_are_taken_for_granted_with_a_warning(pen_demonstrations, caplog):
    with caplog.at_level(logging.WARNING):
        study = pen_study(replace(pen_demonstrations, successes_E=None))
    assert "does not say which demonstrations succeeded; cql-sparse takes it that all did" in caplog.text
    assert study.training_data(member().data_key, (), "cpu").successes.all()
    caplog.clear()
    pen_study(pen_demonstrations)
    assert not caplog.text


def test_other_successes_make_another_member(pen_demonstrations):
    some, others = (np.array([True] * count + [False] * (6 - count)) for count in (2, 3))
    studies = [pen_study(replace(pen_demonstrations, successes_E=successes)) for successes in (some, others, None)]
    assert len({study.identity(member()) for study in studies}) == 3
    bc = make_member(method="bc", steps=1)
    assert len({study.identity(bc) for study in studies}) == 1


def test_batch_larger_than_the_known_transitions_is_refused():
    with pytest.raises(ConfigError, match="batch size 90 is larger than the 89 transitions"):
        CqlLearner(member(batch_size=90), training_data())


def test_options_out_of_range_are_one_sentence():
    with pytest.raises(ConfigError, match="option alpha is 0; it must be a number of at least 1e-09"):
        member(alpha=0)
    with pytest.raises(ConfigError, match="option lagrange is -1"):
        member(lagrange=-1)


def test_paper_is_the_default_and_cost_counts_what_is_learned():
    paper = make_member(method="cql-sparse", steps=1)
    assert (paper.learning_rate, paper.batch_size, paper.hidden) == (3e-5, 256, (256, 256, 256))
    assert dict(paper.options) == {"action_samples": 10, "alpha": 5.0, "critic_learning_rate": 3e-4, "lagrange": 5.0}
    learner = CqlLearner(member(), training_data())
    learned = sum(p.numel() for part in (learner.actor, learner.critics) for p in part.parameters())
    assert CqlLearner.cost(member(), 5, 3).parameters == learned
