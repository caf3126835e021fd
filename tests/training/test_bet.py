"""Behavior Transformers in training: windows, centres and losses, resuming and sharing, and what comes of it."""

import numpy as np
import pytest
import torch

from mcnn_ray.config import SweepConfig
from mcnn_ray.core.blend import beta_at
from mcnn_ray.core.normalise import ActionScale, Standardiser
from mcnn_ray.errors import ConfigError
from mcnn_ray.member import make_member
from mcnn_ray.policies.bet import BetPolicy
from mcnn_ray.sweep.studies import make_study
from mcnn_ray.tasks.catalogue import CATALOGUE
from mcnn_ray.training.bet import BetLearner, action_centres, focal_loss
from mcnn_ray.training.learners import make_pack
from mcnn_ray.training.windows import windows
from tests.core.test_blend import paper_sigma
from tests.training.learning import check_continues_to_the_same_bits, episodes, open_doors, trained_by_two
from tests.training.test_pack import KEYS, one_thread, training_data  # noqa: F401  # a fixture for all tests here

SMALL = {"window": 4, "clusters": 6, "layers": 2, "heads": 2, "width": 16}


def member(method="bet", steps=200, dropout=0.0, **changes):
    options = {**SMALL, "dropout": dropout, **changes.pop("options", {})}
    values = {"batch_size": 16, "learning_rate": 1e-3, **changes}
    return make_member(method=method, steps=steps, options=options, **values)


def test_windows_are_all_full_ones_of_each_episode_and_short_episodes_whole():
    lengths = (5, 3, 1, 4, 0, 9)
    starts, counts = windows(np.array([0, *np.cumsum(lengths)]), 4)
    expected, first = [], 0
    for length in lengths:
        expected += [(first + i, 4) for i in range(length - 3)] if length >= 4 else [(first, length)] * (length > 0)
        first += length
    assert list(zip(starts.tolist(), counts.tolist(), strict=True)) == expected


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal_loss_is_the_papers_and_has_a_gradient_where_the_label_is_certain(gamma):
    logits, label = torch.tensor([[1.0, 2.0, -1.0], [0.0, 200.0, 0.0]], requires_grad=True), torch.tensor([0, 1])
    p = np.exp(1.0) / np.exp([1.0, 2.0, -1.0]).sum()
    loss = focal_loss(logits, label, gamma)
    np.testing.assert_allclose(loss.detach(), [-((1 - p) ** gamma) * np.log(p), 0.0], rtol=1e-5, atol=1e-6)
    loss.sum().backward()
    assert torch.isfinite(logits.grad).all()


def test_centres_are_the_means_of_the_actions_nearest_to_them():
    actions = np.random.default_rng(0).uniform(-1, 1, (500, 3)).astype(np.float32)
    centres = action_centres(actions, 7, seed=3)
    label = np.linalg.norm(actions[:, None] - centres, axis=2).argmin(1)
    means = np.stack([actions[label == k].mean(0) for k in range(7)])
    np.testing.assert_allclose(centres, means, atol=0.02)  # to what 50 passes leave
    np.testing.assert_array_equal(action_centres(actions, 7, seed=3), centres)


def expected_loss(learner, drawn, step):
    """Step by step in float64, from the network's outputs for each window without its padding."""
    one, made, network = learner.member, learner.data, learner.networks["bet"].eval()
    centres, losses = network.centres.numpy().astype(np.float64), []
    starts, lengths = windows(made.offsets, 4)
    for start, length in zip(starts[drawn], lengths[drawn], strict=True):
        rows = np.minimum(np.arange(start, start + 4), len(made.obs_ND) - 1)  # padding from whatever comes next
        with torch.no_grad():
            logits, offsets = (x[0].numpy().astype(np.float64) for x in network.heads(network(made.obs_ND[rows][None])))
        for t in range(length):
            row, action = start + t, made.actions_NA[start + t].numpy()
            label = np.linalg.norm(action - centres, axis=1).argmin()
            p = np.exp(logits[t]) / np.exp(logits[t]).sum()
            offset = offsets[t, label]
            if one.memory_key is not None:
                e = np.exp(-one.lambda_ * float(made.distances[one.memory_key][row]))
                bounded = 2 * paper_sigma(torch.tensor(offset / 2), beta_at(step + 1, one.beta_schedule)).numpy()
                memory = made.memory_actions[one.memory_key][row].numpy()
                offset = (memory - centres[label]) * e + one.L * (1 - e) * bounded
            error = np.mean((offset - (action - centres[label])) ** 2)
            losses.append(-((1 - p[label]) ** 2) * np.log(p[label]) + 1000 * error)
    network.train()
    return np.mean(losses)


@pytest.mark.parametrize("step", [0, 150])
@pytest.mark.parametrize("method", ["bet", "mcnn+bet"])
def test_loss_is_the_papers_over_all_steps_that_belong_to_episodes(method, step):
    learner = BetLearner(member(method, batch_size=13, lambda_=1.3, L=0.7), episodes(7, 3, 1, 9, 2))
    learner.networks["bet"].head.weight.data *= 60  # offsets beyond 2, where sigma bends
    drawn = np.arange(learner.choices)
    expected = expected_loss(learner, drawn, step)
    np.testing.assert_allclose(learner.learn(torch.from_numpy(drawn), step).item(), expected, rtol=1e-4)


def test_rows_of_the_next_episode_do_not_matter_to_a_short_one():
    found = []
    for other in (0.0, 5.0):
        made = episodes(3, 9)
        made.obs_ND[3:] += other
        learner = BetLearner(member(batch_size=7), made)
        for step in range(3):
            loss = learner.learn(torch.zeros(7, dtype=torch.int64), step)  # window 0, the short episode
        found.append(loss.item())
    assert found[0] == found[1]


def test_paper_preset_is_the_papers_network_and_optimiser():
    one = make_member(method="mcnn+bet", steps=1)
    assert dict(one.options) == {
        "window": 10,
        "clusters": 64,
        "layers": 6,
        "heads": 6,
        "width": 120,
        "dropout": 0.1,
        "weight_decay": 2e-4,
        "focal_gamma": 2.0,
    }
    assert (one.lambda_, one.L, one.memory_fraction, one.learning_rate, one.batch_size) == (0.1, 1.0, 0.1, 5.5e-5, 256)
    assert make_member(method="mcnn+bet", steps=1, preset="official-code").lambda_ == 1.0
    learner = BetLearner(make_member(method="bet", steps=1), episodes(300))
    network, (optimiser,) = learner.networks["bet"], learner.optimisers
    assert type(optimiser) is torch.optim.AdamW
    decay = {id(p): group["weight_decay"] for group in optimiser.param_groups for p in group["params"]}
    for name, parameter in network.named_parameters():
        matrix = parameter.dim() == 2 and name != "positions.weight"
        assert decay.pop(id(parameter)) == (2e-4 if matrix else 0.0), name
    assert not decay
    assert [group["betas"] for group in optimiser.param_groups] == [(0.9, 0.999)] * 2
    assert BetLearner.cost(learner.member, 7, 4).parameters == sum(p.numel() for p in network.parameters())


MEMBERS = [
    member("mcnn+bet", steps=40, lambda_=1.0, dropout=0.1),
    member(steps=40, seed=1, dropout=0.1, options={"window": 7}),
]


def test_interrupted_training_continues_to_the_bits_of_an_undisturbed_one(tmp_path):
    check_continues_to_the_same_bits(MEMBERS, lambda: episodes(40, 3, 60), tmp_path, (10, 30))


@pytest.mark.parametrize("method", ["bet", "mcnn+bet"])
def test_shards_of_a_batch_add_up_to_the_whole_though_their_windows_differ_in_length(method):
    made = episodes(20, 2, 1, 3, 2, 9)
    whole = make_pack([member(method)], made).train(30)
    for losses in trained_by_two(member(method), made, 30):
        np.testing.assert_allclose(losses, whole, rtol=2e-3)


def test_learns_two_ways_where_the_mean_is_neither():
    """At every observation half the demonstrations go one way, half the other: what a regression averages to 0."""
    made = training_data(rows=600, actions=2)
    ways = torch.randint(0, 2, (30, 1), generator=torch.Generator().manual_seed(0)).repeat_interleave(20, 0) * 2.0 - 1.0
    made.actions_NA = ways * torch.tensor([0.6, -0.4]) + 0.05 * made.actions_NA
    made.offsets = np.arange(0, 601, 20)
    one = member(steps=150, learning_rate=3e-3, options={"clusters": 2})
    pack = make_pack([one], made)
    pack.train(150)
    unit = ActionScale(low_A=-np.ones(2, np.float32), high_A=np.ones(2, np.float32))
    same = Standardiser(mean_D=np.zeros(7, np.float32), scale_D=np.ones(7, np.float32))
    policy = BetPolicy({}, same, unit, dict(one.options), pack.parameters(0), None)
    actions, _ = policy.act(made.obs_ND[:500].numpy())
    side = np.sign(actions[:, 0])
    np.testing.assert_allclose(actions, side[:, None] * np.array([[0.6, -0.4]]), atol=0.12)
    assert 0.2 < (side > 0).mean() < 0.8


@pytest.mark.parametrize(
    ("values", "least"), [({"method": "bet"}, 2), ({"method": "mcnn+bet", "memory_action": "mean"}, 4)]
)
def test_opens_doors_in_8_episodes_after_25_demonstrations(values, least, door_demonstrations, tmp_path):
    """Of 16 episodes with each of three training seeds, `bet` opened 6 to 11 doors, `mcnn+bet` 14 to 16."""
    options = {"window": 2, "clusters": 4, "layers": 1, "heads": 2, "width": 64, "dropout": 0.0}
    values = {"memory_fraction": 0.2, "options": options, "steps": 500, "learning_rate": 2e-3, **values}
    one, _, rollouts = open_doors(values, door_demonstrations, tmp_path)
    assert sum(rollout.record.success for rollout in rollouts) >= least
    assert (rollouts[0].record.mean_memory_weight is None) == (one.method == "bet")


def test_heads_that_do_not_divide_the_width_are_refused_where_they_are_asked_for():
    with pytest.raises(ConfigError, match="option heads is 7, which does not divide the width 120.*set width to 126"):
        make_member(method="bet", steps=1, options={"heads": 7})
    with pytest.raises(ConfigError, match="option heads is 5, which does not divide the width 64"):
        SweepConfig.parse({"task": "door-expert-v1", "method": "mcnn+bet", "options": {"width": 64, "heads": 5}}, "x")


def test_data_that_cannot_be_learned_from_is_refused_in_a_sentence():
    made = episodes(40)
    made.actions_NA = made.actions_NA[:5].repeat(8, 1)
    with pytest.raises(ConfigError, match="clusters is 6, but the demonstrations have 5 distinct actions; ask for at"):
        make_pack([member()], made)
    make_pack([member(options={"clusters": 5})], made).train(1)


def test_study_refuses_before_anything_starts_what_cannot_be_learned_from(pen_demonstrations):
    task = CATALOGUE["pen-expert-v1"]
    for values, message in (
        ({"batch_size": 548, "options": {"window": 10}}, "548 is larger than the 546 windows of 10 steps.*at most 546"),
        ({"batch_size": 16, "options": {"clusters": 601}}, "clusters is 601, but the demonstrations have 600 distinct"),
    ):
        config = SweepConfig.parse({"task": task.id, "method": "mcnn+bet", **values}, "test")
        with pytest.raises(ConfigError, match=message):
            make_study(config, task, pen_demonstrations)


def test_one_cluster_and_episodes_shorter_than_the_window_train():
    losses = make_pack([member(options={"clusters": 1, "window": 50})], episodes(*[3] * 20)).train(60)
    assert np.isfinite(losses).all()
    assert losses[-10:].mean() < losses[:10].mean()


def test_memory_keys_of_other_members_are_left_alone():
    made, one = episodes(60), member("mcnn+bet", lambda_=1.0)
    assert one.memory_key == KEYS[0]
    losses = make_pack([one], made).train(5)
    made.distances[KEYS[1]] += 9.0
    np.testing.assert_array_equal(make_pack([one], made).train(5), losses)
