"""LSTMs with a mixture of Gaussians in training: the likelihood, resuming and sharing, and what comes of it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from mcnn_ray.config import SweepConfig
from mcnn_ray.core.normalise import ActionScale, Standardiser
from mcnn_ray.errors import ConfigError
from mcnn_ray.member import make_member
from mcnn_ray.policies.lstm_gmm import LstmGmmPolicy
from mcnn_ray.policies.mlp import MlpPolicy
from mcnn_ray.sweep.studies import make_study
from mcnn_ray.tasks.catalogue import CATALOGUE
from mcnn_ray.training.learners import make_pack
from mcnn_ray.training.lstm_gmm import LstmGmmLearner
from mcnn_ray.training.windows import windows
from tests.training.learning import check_continues_to_the_same_bits, episodes, open_doors, trained_by_two
from tests.training.test_pack import layers, one_thread, training_data  # noqa: F401  # a fixture for all tests here


def member(steps=200, **changes):
    options = {"window": 4, "hidden_units": 16, "layers": 2, "modes": 3, **changes.pop("options", {})}
    values = {"batch_size": 16, "learning_rate": 1e-3, **changes}
    return make_member(method="lstm-gmm", steps=steps, options=options, **values)


def expected_loss(learner, drawn):
    """Step by step in float64, from the numbers that go into the head's activations; windows without their padding."""
    made, network, least_std = learner.data, learner.networks["lstm_gmm"], learner.member.option("least_std")
    starts, lengths = windows(made.offsets, 4)
    losses = []
    for start, length in zip(starts[drawn], lengths[drawn], strict=True):
        with torch.no_grad():
            outputs = network.head(network.lstm(made.obs_ND[start : start + length][None])[0])[0]
        for output, action in zip(outputs.double().numpy(), made.actions_NA[start : start + length], strict=True):
            weights = np.exp(output[:3]) / np.exp(output[:3]).sum()
            means, stds = np.tanh(output[3:15].reshape(3, 4)), np.log1p(np.exp(output[15:].reshape(3, 4))) + least_std
            z = (action.double().numpy() - means) / stds
            densities = np.exp(-0.5 * (z**2).sum(1)) / (stds.prod(1) * (2 * math.pi) ** 2)
            losses.append(-np.log(weights @ densities))
    return np.mean(losses)


@pytest.mark.parametrize("least_std", [1e-4, 0.3])
def test_loss_is_the_negative_log_likelihood_over_all_steps_that_belong_to_episodes(least_std):
    learner = LstmGmmLearner(member(batch_size=13, options={"least_std": least_std}), episodes(7, 3, 1, 9, 2))
    learner.networks["lstm_gmm"].head.weight.data *= 10  # modes that differ in weight, mean and deviation
    drawn = np.arange(learner.choices)
    expected = expected_loss(learner, drawn)
    np.testing.assert_allclose(learner.learn(torch.from_numpy(drawn), 0).item(), expected, rtol=1e-5)


def test_rows_of_the_next_episode_do_not_matter_to_a_short_one():
    found = []
    for other in (0.0, 5.0):
        made = episodes(3, 9)
        made.obs_ND[3:] += other
        made.actions_NA[3:] += other
        learner = LstmGmmLearner(member(batch_size=7), made)
        for step in range(3):
            loss = learner.learn(torch.zeros(7, dtype=torch.int64), step)  # window 0, the short episode
        found.append(loss.item())
    assert found[0] == found[1]


def test_paper_preset_is_robomimics_low_dimensional_one_with_the_batch_of_the_quoted_runs():
    one = make_member(method="lstm-gmm", steps=1)
    assert dict(one.options) == {"window": 10, "hidden_units": 400, "layers": 2, "modes": 5, "least_std": 1e-4}
    assert (one.learning_rate, one.batch_size, one.hidden, one.memory_key) == (1e-4, 256, (), None)
    learner = LstmGmmLearner(one, episodes(300))
    (optimiser,) = learner.optimisers
    assert type(optimiser) is torch.optim.Adam
    assert [(group["betas"], group["weight_decay"]) for group in optimiser.param_groups] == [((0.9, 0.999), 0)]
    # Two layers with two biases each, as torch has them, and a head of 5 logits and 5 x 4 means and deviations.
    expected = 4 * 400 * (7 + 400 + 2) + 4 * 400 * (400 + 400 + 2) + 401 * (5 + 2 * 5 * 4)
    assert sum(p.numel() for p in learner.networks.parameters()) == expected
    assert LstmGmmLearner.cost(one, 7, 4).parameters == expected


@pytest.mark.parametrize("options", [{}, {"hidden_units": 200, "modes": 5, "window": 10}])
def test_cost_tells_what_the_forward_pass_keeps(options):
    kept = {}

    def note(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    learner = LstmGmmLearner(member(options=options), episodes(100))
    window = learner.member.option("window")
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = learner._losses(torch.arange(16)[:, None] + torch.arange(window), 0)
    for parameter in learner.networks.parameters():
        kept.pop(parameter.untyped_storage().data_ptr(), None)
    assert loss.shape == (16, window)
    numbers = sum(tensor.untyped_storage().nbytes() // 4 for tensor in kept.values())
    assert numbers == pytest.approx(LstmGmmLearner.cost(learner.member, 7, 4).kept, rel=0.3)


def test_interrupted_training_continues_to_the_bits_of_an_undisturbed_one(tmp_path):
    members = [member(steps=40), member(steps=40, seed=1, options={"window": 7, "layers": 1})]
    check_continues_to_the_same_bits(members, lambda: episodes(40, 3, 60), tmp_path, (10, 30))


def test_shards_of_a_batch_add_up_to_the_whole_though_their_windows_differ_in_length():
    made = episodes(20, 2, 1, 3, 2, 9)
    whole = make_pack([member()], made).train(30)
    for losses in trained_by_two(member(), made, 30):
        np.testing.assert_allclose(losses, whole, rtol=2e-3)


def test_network_that_is_no_longer_finite_has_a_loss_that_says_so():
    """And raises nothing, so that its member leaves the pack and the others go on."""
    learner = LstmGmmLearner(member(), episodes(100))
    learner.networks["lstm_gmm"].head.bias.data[:] = math.nan
    assert math.isnan(learner.take(0, 1).item())


def test_learns_two_ways_where_behaviour_cloning_learns_the_mean_which_is_neither():
    made = training_data(rows=600, actions=2)
    ways = torch.randint(0, 2, (30, 1), generator=torch.Generator().manual_seed(0)).repeat_interleave(20, 0) * 2.0 - 1.0
    made.actions_NA = ways * torch.tensor([0.6, -0.4]) + 0.05 * made.actions_NA
    made.offsets = np.arange(0, 601, 20)
    unit = ActionScale(low_A=-np.ones(2, np.float32), high_A=np.ones(2, np.float32))
    same = Standardiser(mean_D=np.zeros(7, np.float32), scale_D=np.ones(7, np.float32))
    one = member(steps=200, learning_rate=3e-3, options={"layers": 1, "modes": 2})
    pack = make_pack([one], made)
    pack.train(one.steps)
    policy = LstmGmmPolicy({}, same, unit, dict(one.options), pack.parameters(0))
    actions, _ = policy.act(made.obs_ND[:500].numpy())
    side = np.sign(actions[:, 0])
    np.testing.assert_allclose(actions, side[:, None] * np.array([[0.6, -0.4]]), atol=0.2)
    assert 0.2 < (side > 0).mean() < 0.8
    cloned = make_pack([make_member(method="bc", steps=200, batch_size=64, hidden=(32,))], made)
    cloned.train(200)
    means, _ = MlpPolicy({}, same, unit, layers(cloned, 0), None).act(made.obs_ND[:500].numpy())
    assert np.median(np.abs(means[:, 0])) < 0.2


def test_opens_doors_in_8_episodes_after_25_demonstrations(door_demonstrations, tmp_path):
    """With 500 steps all of 16 episodes were opened, with each of three training seeds."""
    options = {"window": 5, "hidden_units": 64, "layers": 1, "modes": 3}
    values = {"method": "lstm-gmm", "options": options, "steps": 400, "learning_rate": 3e-3}
    _, _, rollouts = open_doors(values, door_demonstrations, tmp_path)
    assert sum(rollout.record.success for rollout in rollouts) >= 6


def test_study_refuses_before_anything_starts_what_cannot_be_learned_from(pen_demonstrations):
    task = CATALOGUE["pen-expert-v1"]
    config = SweepConfig.parse({"task": task.id, "method": "lstm-gmm", "batch_size": 548}, "test")
    with pytest.raises(ConfigError, match="548 is larger than the 546 windows of 10 steps.*use at most 546"):
        make_study(config, task, pen_demonstrations)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"least_std": 0}, "option least_std is 0; it must be a number of at least 1e-06 and at most 1"),
        ({"modes": 0}, "option modes is 0; it must be a whole number of at least 1"),
        ({"window": 2.5}, "option window is 2.5; it must be a whole number"),
    ],
)
def test_options_out_of_range_are_refused_where_they_are_asked_for(options, message):
    with pytest.raises(ConfigError, match=message):
        make_member(method="lstm-gmm", steps=1, options=options)


def test_episodes_shorter_than_the_window_train():
    losses = make_pack([member(options={"window": 50})], episodes(*[3] * 20)).train(60)
    assert np.isfinite(losses).all()
    assert losses[-10:].mean() < losses[:10].mean()


def test_seeds_give_different_networks_and_the_same_seed_the_same():
    found = [make_pack([replace(member(), seed=seed)], episodes(60)).train(3).tolist() for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
