"""Policies with a network of a user's own: the memories hold as ever, and no directory has code run unasked."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch

from mcnn_ray.artifacts import write_directory
from mcnn_ray.certify import certificate_of, certify_directories
from mcnn_ray.core.normalise import Standardiser
from mcnn_ray.errors import ArtifactError, ConfigError
from mcnn_ray.policies.backbone import make_backbone
from mcnn_ray.policies.base import save_policy
from mcnn_ray.policies.loading import load_policy
from mcnn_ray.policies.module import ModulePolicy
from tests.policies.test_policies import ACTIONS, OBS, RNG, SCALE, make

DEEP, RESIDUAL = "tests.backbones.Deep", "tests.backbones.Residual"


def parameters(backbone, seed=3):
    named = make_backbone(backbone, 7, 4, seed=seed).named_parameters()
    return {key: parameter.detach().numpy() for key, parameter in named}


def module_policy(backbone=RESIDUAL, memories=True):
    kept = make("mcnn", lambda_=0.5, L=2.0).memories if memories else None
    return ModulePolicy({"task": "t"}, Standardiser.fit(OBS), SCALE, backbone, parameters(backbone), kept)


@pytest.mark.parametrize("memories", [False, True])
def test_policy_with_a_module_loads_back_and_acts_and_explains_identically(tmp_path, memories):
    policy = module_policy(memories=memories)
    save_policy(policy, tmp_path / "policy")
    loaded = load_policy(tmp_path / "policy", RESIDUAL)
    queries = RNG.standard_normal((50, 7))
    np.testing.assert_array_equal(loaded.act(queries)[0], policy.act(queries)[0])
    assert loaded.card == policy.card
    told, expected = loaded.explain(queries), policy.explain(queries)
    if memories:
        np.testing.assert_array_equal(told.weight_B, expected.weight_B)
    else:
        assert told is None
        assert expected is None


@pytest.mark.parametrize("backbone", [DEEP, RESIDUAL])
def test_loaded_policy_with_a_module_returns_the_stored_action_at_every_memory(tmp_path, backbone):
    save_policy(module_policy(backbone), tmp_path / "policy")
    loaded = load_policy(tmp_path / "policy", backbone)
    rows = loaded.memories.rows_M
    np.testing.assert_array_equal(loaded.act(OBS[rows])[0], ACTIONS[rows])
    assert certificate_of([loaded], OBS).holds


def test_outputs_are_those_of_the_module_in_evaluation_mode():
    network = make_backbone(RESIDUAL, 7, 4, seed=3)
    assert not network.training
    queries = RNG.standard_normal((20, 7)).astype(np.float32)
    with torch.no_grad():
        expected = network(torch.from_numpy(queries)).numpy()
    np.testing.assert_array_equal(module_policy().network(queries), expected)


def test_same_network_acts_the_same_as_an_mlp_and_as_a_module():
    module = module_policy(DEEP)
    mlp = make("mcnn", lambda_=0.5, L=2.0)
    given = parameters(DEEP)
    mlp.layers = [(given[f"{i}.weight"].T, given[f"{i}.bias"]) for i in (0, 2, 4)]
    queries = RNG.standard_normal((50, 7)) * 3
    np.testing.assert_allclose(module.act(queries)[0], mlp.act(queries)[0], rtol=1e-4, atol=1e-5)


def test_description_of_a_policy_with_an_mlp_stays_as_it_was(tmp_path):
    save_policy(make("mcnn"), tmp_path / "policy")
    description = json.loads((tmp_path / "policy" / "policy.json").read_text())
    assert description["kind"] == "mlp"
    assert description["settings"] == {"layers": 3, "memories": True, "lambda": 1.0, "L": 1.0}
    load_policy(tmp_path / "policy", "whatever.Else")  # consent is nothing to it


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """A policy directory that names a class of a module which can be imported, but has not been."""
    save_policy(module_policy(DEEP), tmp_path / "own")
    weights = (tmp_path / "own" / "policy.safetensors").read_bytes()
    description = (tmp_path / "own" / "policy.json").read_text().replace(DEEP, "strange_nets.Deep")
    shutil.rmtree(tmp_path / "own")
    with write_directory(tmp_path / "policy") as target:
        (target / "policy.json").write_text(description)
        (target / "policy.safetensors").write_bytes(weights)
    (tmp_path / "strange_nets.py").write_text("from tests.backbones import Deep, OneNumber, Residual")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "policy"
    sys.modules.pop("strange_nets", None)


@pytest.mark.parametrize("backbone", [None, DEEP, "strange_nets.Residual"])
def test_policy_imports_nothing_without_consent(stranger, backbone):
    with pytest.raises(
        ArtifactError, match=r"trained with the backbone strange_nets\.Deep.*pass --backbone strange_ne"
    ):
        load_policy(stranger, backbone)
    with pytest.raises(ArtifactError, match="if you trust that module"):
        certify_directories([stranger], backbone=backbone)
    assert "strange_nets" not in sys.modules


def test_policy_loads_with_consent(stranger):
    assert load_policy(stranger, "strange_nets.Deep").backbone == "strange_nets.Deep"
    assert certify_directories([stranger], states=50, backbone="strange_nets.Deep").holds


def test_policy_of_a_class_that_has_changed_since_is_refused(stranger):
    (stranger.parent / "strange_nets.py").write_text("from tests.backbones import Residual as Deep")
    with pytest.raises(ArtifactError, match=r"has the shape .*that of strange_nets\.Deep now .*was the class changed"):
        load_policy(stranger, "strange_nets.Deep")


def test_policy_whose_module_is_gone_is_refused_in_a_sentence(stranger):
    (stranger.parent / "strange_nets.py").unlink()
    with pytest.raises(ConfigError, match="strange_nets cannot be imported"):
        load_policy(stranger, "strange_nets.Deep")
