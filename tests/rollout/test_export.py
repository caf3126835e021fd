import json

import minari
import numpy as np
import pytest

from mcnn_ray.cli import main
from mcnn_ray.config import SweepConfig
from mcnn_ray.data.minari_store import read_minari
from mcnn_ray.policies.base import save_policy
from mcnn_ray.rollout.episode import run_episodes
from mcnn_ray.rollout.export import rollouts_as_demonstrations
from mcnn_ray.rollout.records import write_rollouts
from mcnn_ray.sweep.studies import open_study
from mcnn_ray.tasks.catalogue import CATALOGUE, find_task
from mcnn_ray.tasks.environments import make_environment
from tests.rollout.test_episode import nearest_policy

PEN = CATALOGUE["pen-expert-v1"]
MEMBER = {"method": "1nn", "seed": 0}


@pytest.fixture(scope="module")
def folder(pen_demonstrations, tmp_path_factory):
    """What a sweep leaves of a member: a policy and its episodes."""
    folder = tmp_path_factory.mktemp("member")
    policy = nearest_policy(pen_demonstrations)
    policy.card |= {"task": PEN.id, "identity": "0123456789ab", "member": MEMBER}
    save_policy(policy, folder / "policy")
    envs = [make_environment(PEN) for _ in range(3)]
    write_rollouts(folder / "episodes.parquet", run_episodes(policy, PEN, envs, [7, 8, 9], "0123456789ab"))
    return folder


@pytest.fixture(scope="module")
def exported(folder):
    with pytest.raises(SystemExit) as ended:
        main(["data", "export", str(folder / "episodes.parquet"), "tests/pen/rollouts-v0"])
    assert not ended.value.code
    return "tests/pen/rollouts-v0"


def test_plain_minari_gives_what_the_policy_saw_did_and_earned(exported, folder, pen_demonstrations):
    from mcnn_ray.rollout.records import read_rollouts

    dataset, policy = minari.load_dataset(exported), nearest_policy(pen_demonstrations)
    assert dataset.total_episodes == 3
    for episode, rollout in zip(dataset.iterate_episodes(), read_rollouts(folder / "episodes.parquet"), strict=True):
        assert len(episode.observations) == len(episode.actions) + 1 == rollout.record.length + 1
        assert np.array_equal(episode.actions, rollout.actions_TA)
        # The observations are those it acted on: it acts on them so again.
        again_TA = np.clip(policy.act(episode.observations[:-1])[0], -1, 1)
        assert np.array_equal(again_TA, rollout.actions_TA)
        assert episode.rewards.astype(np.float64).sum() == pytest.approx(rollout.record.episode_return, rel=1e-5)
        assert bool(episode.infos["success"].any()) == rollout.record.success
        assert episode.truncations[-1]
        assert not episode.terminations.any()
    assert dataset.recover_environment().unwrapped.spec.id.startswith("AdroitHandPen")


def test_provenance_names_policy_task_seeds_and_versions(exported, folder):
    told = minari.load_dataset(exported).storage.metadata["mcnn_provenance"]
    assert told["task"] == PEN.id
    assert told["member"] == "0123456789ab"
    assert told["policy"] == MEMBER
    assert told["episode_seeds"] == [7, 8, 9]
    assert set(told["versions"]) == {"gymnasium", "gymnasium-robotics", "mujoco"}
    assert len(told["policy_sha256"]) == 64


def test_other_numbers_in_the_policy_have_another_hash(folder, exported, pen_demonstrations, tmp_path, mcnn):
    policy = nearest_policy(pen_demonstrations)
    policy.card |= {"task": PEN.id, "identity": "0123456789ab", "member": MEMBER}
    policy._actions_NA = policy._actions_NA + np.float32(1e-6)
    save_policy(policy, tmp_path / "policy")
    status, _, _ = mcnn(
        "data", "export", folder / "episodes.parquet", "tests/pen/other-v0", "--policy", tmp_path / "policy"
    )
    assert status == 0
    hashes = [read_minari(name).provenance["policy_sha256"] for name in (exported, "tests/pen/other-v0")]
    assert hashes[0] != hashes[1]


def test_our_own_loaders_take_it_and_a_policy_can_learn_from_it(exported, mcnn):
    status, out, _ = mcnn("data", "info", exported, "--json")
    facts = json.loads(out)
    assert (status, facts["episodes"], facts["steps"]) == (0, 3, 300)
    assert facts["sha256"] == facts["provenance"]["sha256"]
    config = {"task": PEN.id, "dataset": exported, "method": "mcnn+mlp", "memory_fraction": 0.1}
    assert open_study(SweepConfig.parse(config, "flags")).demonstrations.sha256 == facts["sha256"]


def test_episodes_below_the_least_return_are_left_out(folder, mcnn):
    records = sorted(json.loads(line)["return"] for line in _returns(folder, mcnn))
    least = (records[0] + records[1]) / 2
    status, _, _ = mcnn("data", "export", folder / "episodes.parquet", "tests/pen/better-v0", "--least-return", least)
    data = read_minari("tests/pen/better-v0")
    assert (status, data.episodes) == (0, 2)
    assert data.provenance["least_return"] == least
    status, _, err = mcnn("data", "export", folder / "episodes.parquet", "tests/pen/none-v0", "--least-return", 1e9)
    assert status == 2
    assert "none of the 3 episodes" in err


def _returns(folder, mcnn):
    return [mcnn("replay", folder / "episodes.parquet", "--episode-seed", seed, "--json")[1] for seed in (7, 8, 9)]


def test_rollouts_that_do_not_repeat_are_not_exported(folder, mcnn, tmp_path):
    from mcnn_ray.rollout.records import read_rollouts

    rollouts = read_rollouts(folder / "episodes.parquet")
    rollouts[1].actions_TA[0] += 0.01
    write_rollouts(tmp_path / "episodes.parquet", rollouts)
    status, _, err = mcnn("data", "export", tmp_path / "episodes.parquet", "tests/pen/changed-v0")
    assert status == 1
    assert "the episode of seed 8 earned" in err
    assert mcnn("data", "info", "tests/pen/changed-v0")[0] == 1


def test_episodes_of_another_policy_are_refused(folder, mcnn, tmp_path, pen_demonstrations):
    policy = nearest_policy(pen_demonstrations)
    policy.card |= {"task": PEN.id, "identity": "ba9876543210", "member": MEMBER}
    save_policy(policy, tmp_path / "policy")
    status, _, err = mcnn(
        "data", "export", folder / "episodes.parquet", "tests/pen/o-v0", "--policy", tmp_path / "policy"
    )
    assert status == 2
    assert "holds episodes of 0123456789ab, not of ba9876543210" in err


def test_end_by_the_environment_and_end_by_a_limit_are_told_apart(tmp_path):
    import gymnasium as gym

    import tests.environments as environments
    from mcnn_ray.data.minari_store import write_minari

    gym.register("Uneven-v0", "tests.environments:Uneven")
    environments.record_drift("tests/drift/made-v0")
    task = find_task("Uneven-v0@tests/drift/made-v0")
    policy = nearest_policy(read_minari("tests/drift/made-v0"))
    ended = run_episodes(policy, task, [make_environment(task) for _ in range(2)], [0, 1], "m")
    data = rollouts_as_demonstrations(ended, task, "s", {})
    assert data.terminated_E.tolist() == [True, True]
    write_minari(data, "tests/drift/ended-v0", make_environment(task), description="for tests")
    assert [e.terminations[-1] for e in minari.load_dataset("tests/drift/ended-v0")] == [True, True]
    assert [e.truncations[-1] for e in minari.load_dataset("tests/drift/ended-v0")] == [False, False]
    assert read_minari("tests/drift/ended-v0").terminated_E.tolist() == [True, True]
