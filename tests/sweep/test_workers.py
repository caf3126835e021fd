"""Packs on Ray Train workers: real workers, gloo, and the death of one."""

import shutil
import threading
import time

import numpy as np
import psutil
import pytest

from mcnn_ray.config import SweepConfig
from mcnn_ray.policies.loading import load_policy
from mcnn_ray.sweep.packs import export_pack
from mcnn_ray.sweep.plan import earlier_start, make_plan
from mcnn_ray.sweep.progress import PackProgress
from mcnn_ray.sweep.studies import open_studies
from mcnn_ray.sweep.workers import train_with_workers


def planned(folder, pen_dataset, packs, **changes):
    values = {"task": "pen-expert-v1", "dataset": pen_dataset, "method": ["mcnn+mlp", "bc"], "seed": [0, 1]}
    values |= {"memories": "random", "steps": 600, "hidden": [32], "batch_size": 64, "lambda": 1.0}
    config = SweepConfig.parse({**values, **changes}, "test")
    studies, members = open_studies(config), config.members()
    studies.learn_codebooks(members, folder / "cache")
    return make_plan(folder.resolve(), members, studies, earlier_start(folder, studies), packs), studies


def trained_here(folder, pen_dataset, **changes):
    plan, studies = planned(folder, pen_dataset, 1, **changes)
    for pack in plan.packs:
        export_pack(plan, pack, studies, checkpoint_s=1e9, snapshot_steps=0, device="cpu")
    return plan


def with_workers(plan, studies, told=None):
    packs = plan.open_packs()
    progress = PackProgress(packs, lambda done, total: told is not None and told.append((done, total)))
    train_with_workers(plan, packs, studies, workers=2, checkpoint_s=0, progress=progress)


def layers(plan):
    return {identity: load_policy(plan.policy(identity)).layers for identity in plan.members}


def assert_same_layers(found, expected, tolerance):
    assert found.keys() == expected.keys()
    for identity, pairs in expected.items():
        for (weight, bias), (other_weight, other_bias) in zip(pairs, found[identity], strict=True):
            np.testing.assert_allclose(other_weight, weight, atol=tolerance, rtol=0)
            np.testing.assert_allclose(other_bias, bias, atol=tolerance, rtol=0)


def test_packs_spread_over_workers_train_to_the_bits_of_one_process(tmp_path, pen_dataset, ray_running):
    plan, studies = planned(tmp_path / "workers", pen_dataset, 2)
    assert len(plan.packs) == 2
    told = []
    with_workers(plan, studies, told)
    assert told[-1] == (4 * 600, 4 * 600)
    assert not plan.open_packs()
    assert_same_layers(layers(plan), layers(trained_here(tmp_path / "here", pen_dataset)), 0)


def test_workers_that_share_batches_train_like_one(tmp_path, pen_dataset, ray_running):
    changes = {"method": "mcnn+mlp", "seed": 0, "steps": 200, "batch_size": 63}
    plan, studies = planned(tmp_path / "workers", pen_dataset, 1, **changes)
    with_workers(plan, studies)
    assert_same_layers(layers(plan), layers(trained_here(tmp_path / "here", pen_dataset, **changes)), 1e-4)


def kill_a_worker(plan, killed):
    """Wait for a checkpoint, then end one of the worker processes."""
    while not list(plan.folder.rglob("step-*")):
        time.sleep(0.02)
    workers = [
        p for p in psutil.process_iter(["name", "cmdline"]) if "RayTrainWorker" in " ".join(p.info["cmdline"] or [])
    ]
    if workers:
        workers[0].kill()
        killed.append(workers[0].pid)


@pytest.mark.long
def test_group_goes_on_from_its_checkpoints_when_a_worker_dies(tmp_path, pen_dataset, ray_running):
    changes = {"steps": 3000}
    plan, studies = planned(tmp_path / "workers", pen_dataset, 2, **changes)
    killed, told = [], []
    killer = threading.Thread(target=kill_a_worker, args=(plan, killed))
    killer.start()
    with_workers(plan, studies, told)
    killer.join()
    assert killed
    assert told[-1][0] == told[-1][1]
    assert_same_layers(layers(plan), layers(trained_here(tmp_path / "here", pen_dataset, **changes)), 0)


def test_members_that_are_trained_are_packed_no_more(tmp_path, pen_dataset):
    before = trained_here(tmp_path, pen_dataset)
    one, *others = before.members
    shutil.rmtree(before.policy(others[0]).parent)
    # Of the pack as it was, whose checkpoints hold all its members, the rest is trained again; of new packs it is not.
    (kept,) = planned(tmp_path, pen_dataset, 1)[0].packs
    assert set(kept.members) == set(before.members)
    (fresh,) = planned(tmp_path, pen_dataset, 1, seed=[0, 1, 2], method=["bc"])[0].packs
    assert [member.seed for member in fresh.members.values()] == [2]
    assert one not in fresh.members
