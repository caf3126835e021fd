"""LSTMs with a mixture of Gaussians acting: what an action depends on, what is drawn, when the memory begins anew."""

import pickle

import numpy as np
import pytest
import torch

from mcnn_ray.artifacts import read_json, write_directory, write_json
from mcnn_ray.certify import certificate_of
from mcnn_ray.core.normalise import Standardiser
from mcnn_ray.errors import ArtifactError, McnnError
from mcnn_ray.policies.base import episode_generator, save_policy
from mcnn_ray.policies.loading import load_policy
from mcnn_ray.policies.lstm_gmm import LstmGmmNetwork, LstmGmmPolicy
from tests.policies.test_bet import EPISODES, acted, chosen, linear
from tests.policies.test_policies import OBS, SCALE
from tests.training.test_pack import one_thread  # noqa: F401  # a fixture for all tests here

SHAPE = {"window": 4, "hidden_units": 12, "layers": 2, "modes": 5}


def parameters(seed=0):
    """Weights large enough that every observation of a window matters."""
    generator = torch.Generator().manual_seed(seed)
    state = LstmGmmNetwork(7, 4, SHAPE).state_dict()
    return {name: 0.5 * torch.randn(tensor.shape, generator=generator).numpy() for name, tensor in state.items()}


def make(seed=0, weights=None):
    return LstmGmmPolicy({"task": "t"}, Standardiser.fit(OBS), SCALE, SHAPE, weights or parameters(seed))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def reference(obs_TD, weights):
    """Logits and means after some observations, in float64: two layers written out, gate by gate."""
    weights = {name: array.astype(np.float64) for name, array in weights.items()}
    sequence = obs_TD.astype(np.float64)
    for layer in range(2):
        hidden, cell, outputs = np.zeros(12), np.zeros(12), []
        for x in sequence:
            gates = weights[f"lstm.weight_ih_l{layer}"] @ x + weights[f"lstm.weight_hh_l{layer}"] @ hidden
            gates += weights[f"lstm.bias_ih_l{layer}"] + weights[f"lstm.bias_hh_l{layer}"]
            let_in, keep, new, let_out = np.split(gates, 4)
            cell = sigmoid(keep) * cell + sigmoid(let_in) * np.tanh(new)
            hidden = sigmoid(let_out) * np.tanh(cell)
            outputs.append(hidden)
        sequence = outputs
    output = linear(sequence[-1], weights, "head.")
    return output[:5], np.tanh(output[5:25].reshape(5, 4))


def test_action_is_the_references_mean_of_the_drawn_mode_with_little_noise():
    """And what is seen counts up to the window's end: after every fourth step the reference begins anew."""
    policy, weights = make(), parameters()
    found_TBA = acted(policy, EPISODES, [7, 8, 9])
    drawn = set()
    for episode, seed in enumerate((7, 8, 9)):
        z, generator = policy.standardiser(EPISODES[episode]), episode_generator(seed)
        for t in range(9):
            logits, means = reference(z[t // 4 * 4 : t + 1], weights)
            mode = chosen(logits, generator.random())
            noise = 1e-4 * generator.standard_normal(4, dtype=np.float32)
            np.testing.assert_allclose(found_TBA[t, episode], SCALE.to_raw(means[mode] + noise), atol=2e-5)
            drawn.add(mode)
    assert len(drawn) > 1


def test_context_ends_with_the_window():
    policy = make()
    before = acted(policy, EPISODES, [7, 8, 9])
    for changed_step, window in ((2, (2, 3)), (4, (4, 5, 6, 7))):
        changed = EPISODES.copy()
        changed[:, changed_step] += 1.0
        differs_T = np.abs(acted(policy, changed, [7, 8, 9]) - before).max((1, 2)) > 1e-3
        assert differs_T.tolist() == [t in window for t in range(9)]


def test_each_episode_forgets_by_its_own_age():
    policy = make()
    alone = acted(policy, EPISODES[:2], [7, 8])
    state = policy.start([7, 8])
    found, late = [], state[1:]  # the second episode begins two steps before the first
    for step in range(2):
        actions_BA, late = policy.act(EPISODES[1:2, step], late)
        found.append(actions_BA[0])
    together = [state[0], late[0]]
    for step in range(7):
        actions_BA, together = policy.act(np.stack([EPISODES[0, step], EPISODES[1, step + 2]]), together)
        np.testing.assert_allclose(actions_BA[0], alone[step, 0], atol=2e-5)
        found.append(actions_BA[1])
    np.testing.assert_allclose(found, alone[:, 1], atol=2e-5)


def test_modes_are_drawn_with_the_probabilities_of_the_logits_and_noise_of_1e_4():
    weights, p = parameters(), np.array([0.4, 0.05, 0.3, 0.0, 0.25])
    weights["head.weight"] = np.zeros_like(weights["head.weight"])
    means = np.arange(-1, 1, 0.1).reshape(5, 4)
    bias = [np.log(np.maximum(p, 1e-30)), means.ravel(), np.full(20, 9.0)]  # a learned deviation of 9 is left aside
    weights["head.bias"] = np.concatenate(bias).astype(np.float32)
    policy, draws = make(weights=weights), 4000
    actions_BA, _ = policy.act(np.zeros((draws, 7)), policy.start(range(draws)))
    apart_BMA = SCALE.to_unit(actions_BA)[:, None] - np.tanh(means)
    mode_B = np.abs(apart_BMA).max(2).argmin(1)
    assert (np.abs(np.bincount(mode_B, minlength=5) - draws * p) <= 4.5 * np.sqrt(draws * p * (1 - p))).all()
    noise_BA = apart_BMA[np.arange(draws), mode_B]
    np.testing.assert_allclose(noise_BA.std(0), 1e-4, rtol=0.05)
    assert np.abs(noise_BA.mean(0)).max() < 1e-5


def test_bits_of_an_episode_depend_on_its_seed_and_its_row_alone():
    episodes = np.random.default_rng(2).standard_normal((8, 9, 7))
    found = acted(make(), episodes, range(8))
    others = episodes[::-1].copy()
    others[3] = episodes[3]
    np.testing.assert_array_equal(acted(make(), others, [50, 51, 52, 3, 54, 55, 56, 57])[:, 3], found[:, 3])
    assert not np.array_equal(acted(make(), episodes, range(20, 28)), found)


def test_policy_saves_loads_travels_and_replays_identically(tmp_path):
    policy = make()
    expected = acted(policy, EPISODES, [4, 5, 6])
    save_policy(policy, tmp_path / "policy")
    for other in (load_policy(tmp_path / "policy"), pickle.loads(pickle.dumps(policy))):  # noqa: S301  # our own
        np.testing.assert_array_equal(acted(other, EPISODES, [4, 5, 6]), expected)
        assert other.settings() == policy.settings() == SHAPE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"modes": 6}, "head.weight"),
        ({"layers": 3}, "lstm.weight_ih_l2"),
        ({"hidden_units": 10_000, "layers": 100}, "lstm.weight_ih_l99"),  # 300 GB, were they made
        ({"layers": 1_000_000_000}, "option layers is 1000000000"),
        ({"window": 0}, "option window is 0"),
    ],
)
def test_policy_whose_shape_is_not_that_of_its_weights_is_refused_in_a_sentence(change, message, tmp_path):
    save_policy(make(), tmp_path / "own")
    description = read_json(tmp_path / "own" / "policy.json")
    description["settings"] |= change
    with write_directory(tmp_path / "policy") as target:
        write_json(target / "policy.json", description)
        (target / "policy.safetensors").write_bytes((tmp_path / "own" / "policy.safetensors").read_bytes())
    with pytest.raises(ArtifactError, match=f"its parts do not fit.*{message}.*train the policy again"):
        load_policy(tmp_path / "policy")


def test_policy_has_no_certificate_as_it_has_no_memories():
    assert make().explain(OBS) is None
    with pytest.raises(McnnError, match="has no certificate: without memories"):
        certificate_of([make()], OBS)
