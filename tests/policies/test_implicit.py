"""Policies that search for the action of least energy."""

import itertools
import json

import numpy as np
import pytest

from mcnn_ray.artifacts import write_directory
from mcnn_ray.core.normalise import ActionScale, Standardiser
from mcnn_ray.errors import ArtifactError
from mcnn_ray.policies.base import episode_generator, save_policy
from mcnn_ray.policies.implicit import ImplicitPolicy, _rectified, _resample, energies
from mcnn_ray.policies.loading import load_policy

RNG = np.random.default_rng(0)
OBS = RNG.standard_normal((30, 3)).astype(np.float32)
TARGET = np.array([0.5, -0.25], np.float32)
SEARCH = {"inference_samples": 300, "inference_iterations": 3, "noise": 0.33, "noise_shrink": 0.5}


def random_layers(*widths):
    pairs = itertools.pairwise(widths)
    return [
        (RNG.standard_normal(pair).astype(np.float32), RNG.standard_normal(pair[1:]).astype(np.float32))
        for pair in pairs
    ]


def distance_layers():
    """An energy |a0 - TARGET0| + |a1 - TARGET1|, whatever is observed."""
    to = np.concatenate([np.zeros((3, 4)), np.concatenate([np.eye(2), -np.eye(2)], 1)]).astype(np.float32)
    return [(to, np.concatenate([-TARGET, TARGET])), (np.ones((4, 1), np.float32), np.zeros(1, np.float32))]


def implicit(layers=None, low=(-1, -1), high=(1, 1), **search):
    box = ActionScale(low_A=np.array(low, np.float32), high_A=np.array(high, np.float32))
    scale = ActionScale(low_A=np.array([-2, -2], np.float32), high_A=np.array([2, 2], np.float32))
    layers = distance_layers() if layers is None else layers
    return ImplicitPolicy({"task": "t"}, Standardiser.fit(OBS), scale, layers, box, SEARCH | search)


def test_energy_is_that_of_a_network_whose_pairs_of_layers_add_to_what_enters_them():
    layers = random_layers(5, 8, 8, 8, 8, 8, 1)
    actions = RNG.uniform(-1, 1, (30, 7, 2)).astype(np.float32)
    for b, s in ((0, 0), (29, 6), (4, 2)):
        w = [weight.astype(np.float64) for weight, _ in layers]
        c = [bias.astype(np.float64) for _, bias in layers]
        x = np.concatenate([OBS[b], actions[b, s]]) @ w[0] + c[0]
        x = x + (np.maximum(np.maximum(x, 0) @ w[1] + c[1], 0) @ w[2] + c[2])
        x = x + (np.maximum(np.maximum(x, 0) @ w[3] + c[3], 0) @ w[4] + c[4])
        expected = (np.maximum(x, 0) @ w[5] + c[5])[0]
        assert energies(layers, OBS, actions, _rectified)[b, s] == pytest.approx(expected, rel=1e-4, abs=1e-3)


def test_energy_with_two_hidden_layers_is_that_of_a_plain_mlp():
    layers = random_layers(5, 8, 6, 1)
    x = np.concatenate([OBS, RNG.uniform(-1, 1, (30, 2)).astype(np.float32)], 1)
    expected = np.maximum(np.maximum(x @ layers[0][0] + layers[0][1], 0) @ layers[1][0] + layers[1][1], 0)
    expected = (expected @ layers[2][0] + layers[2][1])[:, 0]
    np.testing.assert_allclose(
        energies(layers, x[:, :3], x[:, None, 3:], _rectified)[:, 0], expected, rtol=1e-4, atol=1e-4
    )


def test_search_of_one_iteration_is_the_best_of_uniform_samples():
    rng = episode_generator(7)
    samples = rng.random((300, 2), dtype=np.float32) * 2 - 1
    best = samples[np.abs(samples - TARGET).sum(1).argmin()]
    action, _ = (policy := implicit(inference_iterations=1)).act(OBS[:1], policy.start([7]))
    np.testing.assert_array_equal(action[0], best * 2)


def test_places_are_drawn_with_the_probabilities_of_the_softmax():
    energy = np.array([0.0, 1.0, 3.0, 0.5], np.float32)
    many = _resample(np.tile(energy, 10000), np.random.default_rng(0)) % 4
    expected = np.exp(-energy) / np.exp(-energy).sum()
    np.testing.assert_allclose(np.bincount(many, minlength=4) / len(many), expected, atol=0.01)


def test_search_comes_nearer_with_samples_and_iterations_and_less_noise():
    def error(**search):
        policy = implicit(**search)
        return np.abs(policy.act(OBS)[0] / 2 - TARGET).mean()

    assert error(inference_samples=2000) < 0.5 * error(inference_samples=20)
    steep = [(10 * distance_layers()[0][0], 10 * distance_layers()[0][1]), distance_layers()[1]]
    assert error(layers=steep, inference_iterations=8) < 0.5 * error(layers=steep, inference_iterations=1)
    assert error(inference_iterations=8) < 0.75 * error(inference_iterations=8, noise_shrink=1.0)
    assert error(inference_samples=2000) < 0.05


def test_search_stays_in_the_box_and_a_box_without_width_gives_its_one_number():
    away = [
        (np.zeros((5, 1), np.float32), np.zeros(1, np.float32)),
        (np.ones((1, 1), np.float32), np.zeros(1, np.float32)),
    ]
    actions = np.concatenate([implicit(away, (-0.5, 0.3), (0.25, 0.3)).act(OBS)[0] for _ in range(3)])
    assert actions[:, 0].min() >= -1.0
    assert actions[:, 0].max() <= 0.5
    np.testing.assert_array_equal(actions[:, 1], np.float32(0.3) * 2)


def test_actions_follow_from_seed_and_row_alone():
    layers = random_layers(5, 16, 16, 16, 1)
    policy = implicit(layers)
    together, state = policy.act(OBS[:8], policy.start(range(8)))
    later, _ = policy.act(OBS[:8], state)
    for i in range(8):
        alone, own = policy.act(OBS[i : i + 1], policy.start([i]))
        np.testing.assert_array_equal(alone[0], together[i])
        np.testing.assert_array_equal(policy.act(OBS[i : i + 1], own)[0][0], later[i])
    other, _ = policy.act(OBS[:8], policy.start(range(8, 16)))
    assert (other != together).any()
    assert (later != together).any()


def test_policy_loads_back_and_acts_identically(tmp_path):
    policy = implicit(random_layers(5, 16, 16, 16, 1), (-0.5, 0.3), (0.25, 0.3), noise=0.2)
    save_policy(policy, tmp_path / "policy")
    loaded = load_policy(tmp_path / "policy")
    np.testing.assert_array_equal(loaded.act(OBS)[0], policy.act(OBS)[0])
    assert loaded.settings() == policy.settings() == SEARCH | {"noise": 0.2}


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        (
            "inference_samples",
            10**12,
            "option inference_samples is 1000000000000; it must be a whole number of at least 1",
        ),
        ("inference_iterations", 0, "option inference_iterations is 0"),
        ("noise", "nan", "option noise is nan"),
    ],
)
def test_directory_that_asks_for_an_endless_search_is_refused(tmp_path, setting, value, message):
    save_policy(implicit(), tmp_path / "own")
    description = json.loads((tmp_path / "own" / "policy.json").read_text())
    description["settings"][setting] = value
    with write_directory(tmp_path / "policy") as target:
        (target / "policy.json").write_text(json.dumps(description))
        (target / "policy.safetensors").write_bytes((tmp_path / "own" / "policy.safetensors").read_bytes())
    with pytest.raises(ArtifactError, match=message):
        load_policy(tmp_path / "policy")
