"""Behavior Transformers acting: which observations an action depends on, which cluster is drawn, what memories do."""

import pickle

import numpy as np
import pytest
import torch

from mcnn_ray.artifacts import read_json, read_tensors, write_directory, write_json
from mcnn_ray.certify import certificate_of
from mcnn_ray.core.normalise import Standardiser
from mcnn_ray.errors import ArtifactError, McnnError
from mcnn_ray.policies.base import episode_generator, save_policy
from mcnn_ray.policies.bet import BetNetwork, BetPolicy
from mcnn_ray.policies.blended import Memories
from mcnn_ray.policies.loading import load_policy
from tests.policies.test_policies import ACTIONS, OBS, SCALE
from tests.training.test_pack import one_thread  # noqa: F401  # a fixture for all tests here

SHAPE = {"window": 4, "clusters": 5, "layers": 2, "heads": 2, "width": 16}
ROWS = np.arange(0, 200, 5)


def parameters(seed=0, scale=0.5):
    """Weights large enough that every observation of a window matters."""
    generator = torch.Generator().manual_seed(seed)
    state = BetNetwork(7, 4, SHAPE).state_dict()
    for name, tensor in state.items():
        if not (name.endswith("weight") and "norm" in name):
            tensor.copy_(scale * torch.randn(tensor.shape, generator=generator))
    state["centres"].clamp_(-1.0, 1.0)
    return {name: tensor.numpy() for name, tensor in state.items()}


def make(lambda_=None, L=1.0, seed=0, weights=None):
    standardiser, memories = Standardiser.fit(OBS), None
    if lambda_ is not None:
        obs = standardiser(OBS)
        memories = Memories(observations_MD=obs[ROWS], actions_MA=ACTIONS[ROWS], rows_M=ROWS, lambda_=lambda_, L=L)
    return BetPolicy({"task": "t"}, standardiser, SCALE, SHAPE, weights or parameters(seed), memories)


def linear(x, weights, name):
    return x @ weights[f"{name}weight"].T + weights[f"{name}bias"]


def normal(x, weights, name):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return x * weights[f"{name}weight"] + weights[f"{name}bias"]


def gelu(x):
    from scipy.special import erf

    return 0.5 * x * (1 + erf(x / np.sqrt(2)))


def reference(obs_TD, weights):
    """Logits and offsets of the last of 1 to 4 observations, in float64: a GPT written out, without any padding."""
    weights = {name: array.astype(np.float64) for name, array in weights.items()}
    x, steps, part = linear(obs_TD, weights, "embedding."), len(obs_TD), 8
    x = x + weights["positions.weight"][:steps]
    for layer in range(2):
        name = f"layers.layers.{layer}."
        qkv = linear(normal(x, weights, f"{name}norm1."), weights, f"{name}self_attn.in_proj_")
        seen = np.zeros((steps, 16))
        for head in range(2):
            q, k, v = (qkv[:, 16 * i + part * head : 16 * i + part * (head + 1)] for i in range(3))
            scores = np.where(np.tri(steps) > 0, q @ k.T / np.sqrt(part), -np.inf)
            share = np.exp(scores - scores.max(1, keepdims=True))
            seen[:, part * head : part * (head + 1)] = share / share.sum(1, keepdims=True) @ v
        x = x + linear(seen, weights, f"{name}self_attn.out_proj.")
        inner = gelu(linear(normal(x, weights, f"{name}norm2."), weights, f"{name}linear1."))
        x = x + linear(inner, weights, f"{name}linear2.")
    output = linear(normal(x, weights, "layers.norm."), weights, "head.")[-1]
    return output[:5], output[5:].reshape(5, 4)


def chosen(logits, uniform):
    """The cluster at which the cumulative probability passes a uniform number."""
    p = np.exp(logits - logits.max())
    return int(np.searchsorted((p / p.sum()).cumsum(), uniform, "right"))


def acted(policy, episodes_BTD, seeds):
    """(T, B, A) actions of episodes in step."""
    state, actions = policy.start(seeds), []
    for obs_BD in np.swapaxes(episodes_BTD, 0, 1):
        actions_BA, state = policy.act(obs_BD, state)
        actions.append(actions_BA)
    return np.stack(actions)


EPISODES = np.random.default_rng(1).standard_normal((3, 9, 7)).astype(np.float32) * 3


@pytest.mark.parametrize("lambda_", [None, 0.3])
def test_action_is_the_references_for_the_newest_observation_and_those_before_it(lambda_):
    """Also where fewer than a window have been seen; and with memories, in the paper's form on the offset."""
    policy, weights = make(lambda_, L=0.8), parameters()
    found_TBA = acted(policy, EPISODES, [7, 8, 9])
    for episode, seed in enumerate((7, 8, 9)):
        z, generator = policy.standardiser(EPISODES[episode]), episode_generator(seed)
        for t in range(9):
            logits, offsets = reference(z[max(0, t - 3) : t + 1], weights)
            cluster = chosen(logits, generator.random())
            centre, offset = weights["centres"][cluster], offsets[cluster]
            if lambda_ is not None:
                distances = np.linalg.norm(z[t] - policy.memories.observations_MD, axis=1)
                memory, e = SCALE.to_unit(ACTIONS[ROWS[distances.argmin()]]), np.exp(-lambda_ * distances.min())
                offset = (memory - centre) * e + 0.8 * (1 - e) * 2 * np.clip(offset / 2, -1, 1)
            np.testing.assert_allclose(found_TBA[t, episode], SCALE.to_raw(centre + offset), atol=2e-3)


def test_context_counts_up_to_the_window_and_no_further():
    """The batch is episodes, not steps: an action would not change with the step before it if time were the batch."""
    policy = make()
    before = acted(policy, EPISODES, [7, 8, 9])
    changed = EPISODES.copy()
    changed[:, 2] += 1.0
    after = acted(policy, changed, [7, 8, 9])
    differs_T = np.abs(after - before).max((1, 2)) > 1e-3
    assert differs_T.tolist() == [t in (2, 3, 4, 5) for t in range(9)]


@pytest.mark.parametrize("lambda_", [0.0, 0.1, 10.0, 1e6])
def test_policy_returns_the_stored_action_at_a_memory_to_the_last_bit_whatever_came_before(lambda_):
    policy, state = make(lambda_, L=3.0), None
    for step in range(6):
        rows = ROWS[step : step + 8]
        actions_BA, state = policy.act(OBS[rows], state)
        np.testing.assert_array_equal(actions_BA, ACTIONS[rows])
        far, state = policy.act(OBS[rows] + 1.0, state)
        assert lambda_ == 0.0 or (far != ACTIONS[rows]).any(1).all()


def test_explain_tells_the_newest_observations_memory_and_nothing_without_memories():
    policy = make(0.5)
    told = policy.explain(OBS[ROWS[:3]])
    assert told.row_B.tolist() == ROWS[:3].tolist()
    assert told.distance_B.tolist() == [0, 0, 0]
    assert told.weight_B.tolist() == [1, 1, 1]
    assert make().explain(OBS) is None


def test_clusters_are_drawn_with_the_probabilities_of_the_logits():
    weights, p = parameters(), np.array([0.4, 0.05, 0.3, 0.0, 0.25])
    weights["head.weight"] = np.zeros_like(weights["head.weight"])
    weights["head.bias"] = np.concatenate([np.log(np.maximum(p, 1e-30)), np.zeros(20)]).astype(np.float32)
    policy = make(weights=weights)
    draws = 4000
    actions_BA, state = policy.act(np.zeros((draws, 7)), policy.start(range(draws)))
    for actions in (actions_BA, policy.act(np.zeros((draws, 7)), state)[0]):
        centres = SCALE.to_raw(weights["centres"])
        counts = (actions[:, None] == centres).all(2).sum(0)
        assert counts.sum() == draws
        assert (np.abs(counts - draws * p) <= 4.5 * np.sqrt(draws * p * (1 - p))).all()


def test_draws_are_not_those_that_an_environment_starts_with():
    policy = make()
    assert [e.generator.random() for e in policy.start([3])] != [np.random.default_rng(3).random()]


def test_bits_of_an_episode_depend_on_its_seed_and_its_row_alone():
    episodes = np.random.default_rng(2).standard_normal((8, 9, 7))
    found = acted(make(0.3), episodes, range(8))
    others = episodes[::-1].copy()
    others[3] = episodes[3]
    seeds = [50, 51, 52, 3, 54, 55, 56, 57]
    np.testing.assert_array_equal(acted(make(0.3), others, seeds)[:, 3], found[:, 3])
    assert not np.array_equal(acted(make(0.3), episodes, range(20, 28)), found)


@pytest.mark.parametrize("lambda_", [None, 0.3])
def test_policy_saves_loads_travels_and_replays_identically(lambda_, tmp_path):
    policy = make(lambda_, L=0.7)
    expected = acted(policy, EPISODES, [4, 5, 6])
    save_policy(policy, tmp_path / "policy")
    for other in (load_policy(tmp_path / "policy"), pickle.loads(pickle.dumps(policy))):  # noqa: S301  # our own
        np.testing.assert_array_equal(acted(other, EPISODES, [4, 5, 6]), expected)
        assert other.settings() == policy.settings()


def test_policy_whose_shape_is_not_that_of_its_weights_is_refused_in_a_sentence(tmp_path):
    save_policy(make(), tmp_path / "own")
    description = read_json(tmp_path / "own" / "policy.json")
    description["settings"]["clusters"] = 6
    with write_directory(tmp_path / "policy") as target:
        write_json(target / "policy.json", description)
        (target / "policy.safetensors").write_bytes((tmp_path / "own" / "policy.safetensors").read_bytes())
    assert read_tensors(tmp_path / "policy" / "policy.safetensors")["parameters.centres"].shape == (5, 4)
    with pytest.raises(ArtifactError, match="its parts do not fit.*head.weight.*train the policy again"):
        load_policy(tmp_path / "policy")


def test_certificate_holds_with_the_bound_of_centre_and_offset_across_seeds():
    policies = [make(0.3, L=0.5, seed=seed, weights=parameters(seed, scale=2.0)) for seed in (0, 1)]
    certificate = certificate_of(policies, OBS)
    assert certificate.holds
    assert certificate.L == 2.0
    assert certificate.inexact_memories == 0
    assert certificate.checked[0].width > 0.5 * certificate.checked[0].width_bound  # no bound that anything fits
    assert any("1 + 2 L" in note for note in certificate.notes)


def test_certificate_of_centres_beyond_the_bounds_does_not_hold():
    weights = parameters(scale=2.0)
    weights["centres"] *= 9
    assert not certificate_of([make(0.3, L=0.5, weights=weights)], OBS).holds


def test_transformer_without_memories_has_no_certificate():
    with pytest.raises(McnnError, match="has no certificate: without memories"):
        certificate_of([make()], OBS)
