"""Exported policies answer in onnxruntime what the policies do: at memories, near them and far away."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcnn_ray.core.normalise import ActionScale, Standardiser
from mcnn_ray.errors import ConfigError
from mcnn_ray.export import TOLERANCE, compare_exported, export_policy
from mcnn_ray.policies.blended import Memories
from mcnn_ray.policies.mlp import MlpPolicy
from tests.policies.test_policies import SCALE, make

onnxruntime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

RNG = np.random.default_rng(1)
DIM, ACTIONS, MEMORIES = 12, 4, 1500
AWAY = [0.0, 1e-4, 1e-2, 1.0, 10.0]  # from a memory, in standard deviations; farther, float32 is not exact to 1e-5
OBSERVATIONS = (RNG.standard_normal((MEMORIES, DIM)) * RNG.uniform(0.1, 30, DIM) + 5).astype(np.float32)


def policy(method, lambda_=0.5, L=0.8, observations=OBSERVATIONS):
    standardiser = Standardiser.fit(observations)
    layers = []
    for before, after in ((DIM, 64), (64, 64), (64, ACTIONS)):
        weight = (RNG.standard_normal((before, after)) / np.sqrt(before)).astype(np.float32)
        layers.append((weight, np.full(after, 0.1, np.float32)))
    memories = Memories(
        observations_MD=standardiser(observations),
        actions_MA=RNG.uniform(-2, 5, (len(observations), ACTIONS)).astype(np.float32),
        rows_M=np.arange(len(observations)) * 3,
        lambda_=lambda_,
        L=L,
    )
    card = {"task": "t", "member": {"method": method}}
    return MlpPolicy(card, standardiser, SCALE, layers, memories if method == "mcnn+mlp" else None)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Policy and session of each method; a session is dear to make."""
    folder, made = tmp_path_factory.mktemp("onnx"), {}
    for method in ("bc", "mcnn+mlp"):
        made[method] = policy(method)
        export_policy(made[method], folder / f"{method}.onnx")
    return {name: (found, session(folder / f"{name}.onnx")) for name, found in made.items()}


def session(path):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def difference(found, actions_BA, observations_BD):
    half_A = (found.action_scale.high_A - found.action_scale.low_A) / 2
    return (np.abs(actions_BA - found.act(observations_BD)[0]) / half_A).max(initial=0.0)


@pytest.mark.parametrize("method", ["bc", "mcnn+mlp"])
@settings(max_examples=40)
@given(batch=st.integers(1, 130), away=st.sampled_from(AWAY), seed=st.integers(0, 2**32 - 1))
def test_actions_equal_the_policys_for_every_batch_at_memories_near_and_far(exported, method, batch, away, seed):
    found, run = exported[method]
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((batch, DIM)) * away * found.standardiser.scale_D
    observations_BD = (OBSERVATIONS[rng.integers(MEMORIES, size=batch)] + noise).astype(np.float32)
    (actions_BA,) = run.run(["actions"], {"observations": observations_BD})
    assert actions_BA.shape == (batch, ACTIONS)
    assert difference(found, actions_BA, observations_BD) <= TOLERANCE


def test_stored_action_comes_back_at_every_memory_to_the_last_bit(exported):
    found, run = exported["mcnn+mlp"]
    actions, rows, distances = run.run(["actions", "memory_row", "memory_distance"], {"observations": OBSERVATIONS})
    np.testing.assert_array_equal(actions, found.memories.actions_MA)
    np.testing.assert_array_equal(rows, found.memories.rows_M)
    assert not distances.any()


@pytest.mark.parametrize("away", [0.01, 1.0, 100.0, 1e4])
def test_memory_and_distance_are_the_policys(exported, away):
    found, run = exported["mcnn+mlp"]
    noise = RNG.standard_normal(OBSERVATIONS.shape) * away * found.standardiser.scale_D
    observations = (OBSERVATIONS + noise).astype(np.float32)
    rows, distances = run.run(["memory_row", "memory_distance"], {"observations": observations})
    told = found.explain(observations)
    np.testing.assert_array_equal(rows, told.row_B)
    np.testing.assert_allclose(distances, told.distance_B, rtol=2e-7)


def test_of_equally_near_memories_the_first_is_taken(tmp_path):
    grid = np.stack(np.meshgrid(*[np.arange(3.0)] * 3), -1).reshape(-1, 3).astype(np.float32)
    scale = Standardiser(mean_D=np.zeros(3, np.float32), scale_D=np.ones(3, np.float32))
    order = RNG.permutation(len(grid))
    memories = Memories(
        observations_MD=grid[order],
        actions_MA=RNG.uniform(-1, 1, (len(grid), 2)).astype(np.float32),
        rows_M=np.arange(len(grid)),
        lambda_=0.1,
        L=1.0,
    )
    bounds = ActionScale(low_A=-np.ones(2, np.float32), high_A=np.ones(2, np.float32))
    found = MlpPolicy({}, scale, bounds, [(np.ones((3, 2), np.float32), np.zeros(2, np.float32))], memories)
    export_policy(found, tmp_path / "grid.onnx")
    middles = (grid + 0.5).astype(np.float32)  # up to eight corners are as near as each other
    rows, actions = session(tmp_path / "grid.onnx").run(["memory_row", "actions"], {"observations": middles})
    np.testing.assert_array_equal(rows, found.explain(middles).row_B)
    assert difference(found, actions, middles) <= TOLERANCE


@pytest.mark.parametrize(("lambda_", "L"), [(0.0, 1.0), (10.0, 3.0), (1e6, 1.0)])
def test_any_lambda_and_bound_is_exported(tmp_path, lambda_, L):
    found = policy("mcnn+mlp", lambda_, L, OBSERVATIONS[:5])  # fewer memories than candidates
    export_policy(found, tmp_path / "policy.onnx")
    assert compare_exported(found, tmp_path / "policy.onnx") <= TOLERANCE * max(L, 1.0)


def test_columns_that_are_ignored_stay_ignored(tmp_path):
    observations = OBSERVATIONS.copy()
    observations[:, 2] = 7.0
    found = policy("mcnn+mlp", observations=observations)
    export_policy(found, tmp_path / "policy.onnx")
    observations[:, 2] = 1e6
    (actions,) = session(tmp_path / "policy.onnx").run(["actions"], {"observations": observations})
    np.testing.assert_array_equal(actions, found.memories.actions_MA)


def test_file_says_where_the_policy_comes_from_and_needs_no_new_runtime(tmp_path):
    export_policy(policy("bc"), tmp_path / "policy.onnx")
    model = onnx.load(tmp_path / "policy.onnx")
    assert {entry.key: json.loads(entry.value) for entry in model.metadata_props} == {
        "mcnn.card": {"task": "t", "member": {"method": "bc"}}
    }
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 18)]
    assert [path.name for path in tmp_path.iterdir()] == ["policy.onnx"]


def test_other_methods_are_refused_with_those_that_can(tmp_path):
    with pytest.raises(ConfigError, match=r"nearest cannot be exported to ONNX; bc, mcnn\+mlp"):
        export_policy(make("1nn"), tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())
