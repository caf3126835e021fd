import itertools
import json
import pickle
import shutil

import numpy as np
import pytest

from mcnn_ray.artifacts import write_directory
from mcnn_ray.core.normalise import ActionScale, Standardiser
from mcnn_ray.errors import ArtifactError, DatasetError
from mcnn_ray.policies.base import save_policy
from mcnn_ray.policies.blended import Memories
from mcnn_ray.policies.loading import load_policy
from mcnn_ray.policies.mlp import MlpPolicy
from mcnn_ray.policies.nearest import NearestPolicy

RNG = np.random.default_rng(0)
OBS = (RNG.standard_normal((200, 7)) * 3 + 2).astype(np.float32)
ACTIONS = RNG.uniform(-2, 5, (200, 4)).astype(np.float32)
SCALE = ActionScale(low_A=np.full(4, -2, np.float32), high_A=np.full(4, 5, np.float32))


def layers(*widths):
    return [
        (RNG.standard_normal((a, b)).astype(np.float32), RNG.standard_normal(b).astype(np.float32))
        for a, b in itertools.pairwise(widths)
    ]


def make(kind, lambda_=1.0, L=1.0):
    standardiser = Standardiser.fit(OBS)
    obs = standardiser(OBS)
    if kind in ("1nn", "vinn"):
        return NearestPolicy({"task": "t"}, standardiser, SCALE, obs, ACTIONS, 1 if kind == "1nn" else 10)
    rows = np.arange(0, 200, 5)
    memories = Memories(observations_MD=obs[rows], actions_MA=ACTIONS[rows], rows_M=rows, lambda_=lambda_, L=L)
    return MlpPolicy({"task": "t"}, standardiser, SCALE, layers(7, 16, 16, 4), memories if kind == "mcnn" else None)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("lambda_", [0.0, 0.1, 10.0, 1e6])
def test_policy_returns_stored_action_at_memory_to_the_last_bit(lambda_, dtype):
    policy = make("mcnn", lambda_, L=3.0)
    rows = policy.memories.rows_M
    actions, _ = policy.act(OBS[rows].astype(dtype))
    np.testing.assert_array_equal(actions, ACTIONS[rows])


def test_nearest_policy_returns_the_demonstrated_action_at_every_demonstration():
    np.testing.assert_array_equal(make("1nn").act(OBS)[0], ACTIONS)


def test_blend_follows_equation_one_away_from_memories():
    policy = make("mcnn", lambda_=0.5)
    queries = RNG.standard_normal((30, 7)).astype(np.float32) * 3
    z = policy.standardiser(queries)
    distances = np.linalg.norm(z[:, None] - policy.memories.observations_MD[None], axis=2)
    nearest = distances.argmin(1)
    weight = np.exp(-0.5 * distances.min(1))[:, None]
    memory = SCALE.to_unit(policy.memories.actions_MA[nearest])
    expected = SCALE.to_raw(weight * memory + (1 - weight) * np.clip(policy.network(z), -1, 1))
    np.testing.assert_allclose(policy.act(queries)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["bc", "mcnn", "1nn", "vinn"])
def test_actions_stay_within_the_bounds(kind):
    actions, _ = make(kind).act(RNG.standard_normal((300, 7)) * 100)
    assert actions.min() >= -2 - 1e-5
    assert actions.max() <= 5 + 1e-5


def test_explain_names_the_memory_its_distance_and_weight():
    policy = make("mcnn", lambda_=0.5)
    told = policy.explain(OBS[policy.memories.rows_M[:3]])
    assert told.row_B.tolist() == policy.memories.rows_M[:3].tolist()
    assert told.distance_B.tolist() == [0, 0, 0]
    assert told.weight_B.tolist() == [1, 1, 1]
    assert make("bc").explain(OBS) is None


@pytest.mark.parametrize("kind", ["bc", "mcnn", "1nn", "vinn"])
def test_action_of_a_row_does_not_depend_on_the_batch_it_is_in(kind):
    policy = make(kind)
    alone = np.concatenate([policy.act(OBS[i : i + 1] + 0.1)[0] for i in range(20)])
    np.testing.assert_allclose(policy.act(OBS[:20] + 0.1)[0], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["bc", "mcnn", "1nn", "vinn"])
def test_policy_loads_back_and_acts_identically(kind, tmp_path):
    policy = make(kind)
    save_policy(policy, tmp_path / "policy")
    loaded = load_policy(tmp_path / "policy")
    queries = RNG.standard_normal((50, 7))
    np.testing.assert_array_equal(loaded.act(queries)[0], policy.act(queries)[0])
    assert loaded.card == policy.card


def test_observations_of_another_width_are_refused():
    with pytest.raises(DatasetError, match="takes 7 observation numbers"):
        make("bc").act(np.zeros((1, 8)))


@pytest.fixture
def saved(tmp_path):
    save_policy(make("mcnn"), tmp_path / "policy")
    return tmp_path / "policy"


def test_cut_weights_are_refused_and_named(saved):
    weights = saved / "policy.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(ArtifactError, match=r"policy\.safetensors is damaged"):
        load_policy(saved)


def test_changed_settings_are_refused(saved):
    description = saved / "policy.json"
    description.write_text(description.read_text().replace('"lambda": 1.0', '"lambda": 2.0'))
    with pytest.raises(ArtifactError, match=r"policy\.json is damaged"):
        load_policy(saved)


def test_missing_file_is_named(saved):
    (saved / "policy.safetensors").unlink()
    with pytest.raises(ArtifactError, match=r"lacks policy\.safetensors"):
        load_policy(saved)


def test_folder_without_a_policy_is_refused(tmp_path):
    with pytest.raises(ArtifactError, match="not a policy directory"):
        load_policy(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 99}, "policy format 99"),
        ({"kind": "oracle"}, "kind 'oracle'"),
        ({"settings": {}}, "do not fit"),
        ({"settings": {"layers": 9, "memories": False}}, "do not fit"),
        ({"settings": {"layers": 1, "memories": False}}, "do not fit"),
    ],
)
def test_foreign_policy_directories_are_refused(saved, change, message):
    description = {**json.loads((saved / "policy.json").read_text()), **change}
    weights = (saved / "policy.safetensors").read_bytes()
    shutil.rmtree(saved)
    with write_directory(saved) as target:
        (target / "policy.json").write_text(json.dumps(description))
        (target / "policy.safetensors").write_bytes(weights)
    with pytest.raises(ArtifactError, match=message):
        load_policy(saved)


class Payload:
    """Runs when unpickled."""

    def __reduce__(self):
        return (open, ("payload-ran", "w"))


def test_pickle_in_place_of_weights_is_refused_and_does_not_run(saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    description = (saved / "policy.json").read_bytes()
    shutil.rmtree(saved)
    with write_directory(saved) as target:
        (target / "policy.json").write_bytes(description)
        (target / "policy.safetensors").write_bytes(pickle.dumps(Payload()))
    with pytest.raises(ArtifactError, match="not a whole safetensors file"):
        load_policy(saved)
    assert not (tmp_path / "payload-ran").exists()


def test_vinn_is_the_mean_of_the_nearest_actions_weighted_by_exp_of_minus_distance():
    policy, queries = make("vinn"), OBS[:5] + 0.3
    standardiser = policy.standardiser
    distances = np.linalg.norm(standardiser(queries)[:, None].astype(np.float64) - standardiser(OBS)[None], axis=2)
    for action, distance, told in zip(policy.act(queries)[0], distances, policy.explain(queries).weight_B, strict=True):
        nearest = np.argsort(distance)[:10]
        weights = np.exp(-distance[nearest]) / np.exp(-distance[nearest]).sum()
        np.testing.assert_allclose(action, weights @ ACTIONS[nearest], rtol=1e-4, atol=1e-5)
        assert told == pytest.approx(weights[0], rel=1e-4)


def test_vinn_far_from_all_demonstrations_still_averages():
    actions, _ = make("vinn").act(np.full((1, 7), 1e6))
    assert np.isfinite(actions).all() and (ACTIONS.min(0) <= actions).all() and (actions <= ACTIONS.max(0)).all()
