"""Networks of users' own in a sweep: trained, exported and rolled out, by those who name them."""

import numpy as np
import pytest

from mcnn_ray.config import SweepConfig
from mcnn_ray.errors import ArtifactError, ConfigError
from mcnn_ray.policies.loading import load_policy
from mcnn_ray.sweep.evaluation import evaluate_policy
from mcnn_ray.sweep.packs import export_pack
from mcnn_ray.sweep.studies import open_studies
from tests.sweep.test_workers import planned

RESIDUAL = "tests.backbones.Residual"


def silent(stage, done, total):
    pass


def test_trained_network_of_one_s_own_is_exported_and_rolls_out_if_it_is_named(tmp_path, pen_dataset, ray_running):
    plan, studies = planned(tmp_path, pen_dataset, 1, backbone=RESIDUAL, steps=50, seed=0)
    (pack,) = plan.packs
    export_pack(plan, pack, studies, checkpoint_s=1e9, snapshot_steps=0, device="cpu")
    assert [member.method for member in pack.members.values()] == ["mcnn+mlp", "bc"]
    data = studies.demonstrations
    for identity, member in pack.members.items():
        policy = load_policy(plan.policy(identity), RESIDUAL)
        assert policy.backbone == RESIDUAL
        if member.memory_key is not None:
            rows = policy.memories.rows_M
            np.testing.assert_array_equal(policy.act(data.observations_ND[rows])[0], data.actions_NA[rows])
    with pytest.raises(ArtifactError, match=f"pass --backbone {RESIDUAL} if you trust that module"):
        evaluate_policy(plan.policy(identity), 1, 1, None, silent)
    row, _, _ = evaluate_policy(plan.policy(identity), 1, 1, None, silent, RESIDUAL)
    assert row.member == member
    assert row.episode_return.n == 1


def test_network_is_checked_before_anything_is_trained(pen_dataset):
    values = {"task": "pen-expert-v1", "dataset": pen_dataset, "steps": 1, "batch_size": 8}
    with pytest.raises(ConfigError, match="LayerNorm"):
        open_studies(SweepConfig.parse({**values, "backbone": "tests.backbones.Normalised"}, "test"))
    open_studies(SweepConfig.parse({**values, "backbone": "no.such", "method": "1nn"}, "test"))
