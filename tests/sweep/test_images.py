"""Tasks of images: every method learns from embeddings, and a policy directory is enough to act on images again."""

import json
import pickle
import shutil

import mlflow
import numpy as np
import pytest

from mcnn_ray.certify import certify_directories
from mcnn_ray.config import SweepConfig
from mcnn_ray.data.minari_store import write_minari
from mcnn_ray.encoders.encoder import find_encoder, random_encoder, write_encoder
from mcnn_ray.errors import ArtifactError, ConfigError, DatasetError
from mcnn_ray.explain import explain_rollout, run_as_evaluated
from mcnn_ray.explain_frames import frames_of
from mcnn_ray.export import export_policy
from mcnn_ray.learned import learned_from
from mcnn_ray.monitor import Monitor
from mcnn_ray.policies.base import save_policy
from mcnn_ray.policies.loading import load_policy
from mcnn_ray.policy_model import find_model
from mcnn_ray.registry import open_store
from mcnn_ray.report.explain_page import explanation_page
from mcnn_ray.rollout.episode import run_episodes
from mcnn_ray.rollout.records import read_rollouts
from mcnn_ray.rollout.replay import replay
from mcnn_ray.sweep.runner import run_sweep
from mcnn_ray.sweep.studies import open_study
from mcnn_ray.tasks.catalogue import CATALOGUE, Task, find_task
from mcnn_ray.tasks.environments import make_environment
from mcnn_ray.training.learners import make_pack
from mcnn_ray.watching import held_out_demonstrations, watch_rollouts
from tests.environments import glance_demonstrations

TASK = "tests.environments:Glance-v0@mcnn/glance/images-v0"
BET = {"window": 2, "clusters": 4, "layers": 1, "heads": 1, "width": 8}
METHODS = ("bc", "mcnn+mlp", "1nn", "vinn", "bet", "mcnn+bet")


@pytest.fixture(scope="module")
def dataset():
    env = make_environment(find_task(TASK))
    write_minari(glance_demonstrations(), "mcnn/glance/images-v0", env, description="for tests")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def asked(*methods, **others):
    values = {"task": TASK, "encoder": "random-small", "method": methods, "steps": 4, "hidden": [16], **others}
    options = BET if "bet" in methods[0] else {}
    return SweepConfig.parse({"batch_size": 16, "memory_fraction": 0.2, "options": options, **values}, "test")


def policy_of(method, cache, **others):
    config = asked(method, **others)
    study, (member,) = open_study(config, cache), config.members()
    study.learn_codebooks([member], cache / "codebooks")
    if not member.trained:
        return study.policy(member)
    memories = [member.memory_key] if member.memory_key else []
    pack = make_pack([member], study.training_data(member.data_key, memories, "cpu"))
    pack.train(member.steps)
    return study.policy(member, pack.parameters(0))


def roll_out(policy, seeds, places=None):
    task = find_task(TASK)
    envs = [make_environment(task) for _ in seeds]
    return run_episodes(policy, task, envs, seeds, "member", places or 0)


@pytest.mark.parametrize("method", METHODS)
def test_policy_directory_acts_the_same_without_what_it_was_trained_with(method, dataset, cache, tmp_path):
    policy = policy_of(method, cache)
    save_policy(policy, tmp_path / "trained" / "policy")
    moved = shutil.copytree(tmp_path / "trained" / "policy", tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "trained")
    loaded = load_policy(moved)
    assert loaded.encoder.description() == random_encoder("small").description()
    expected = [rollout.actions_TA for rollout in roll_out(policy, [3, 4, 5])]
    assert np.ptp(np.concatenate(expected)) > 0
    # As the pool has it: built from arrays in another process.
    for other in (loaded, pickle.loads(pickle.dumps(loaded))):  # noqa: S301  # our own
        np.testing.assert_array_equal([rollout.actions_TA for rollout in roll_out(other, [3, 4, 5])], expected)


def test_episode_has_the_same_bits_in_any_company(dataset, cache):
    policy = policy_of("mcnn+mlp", cache)
    together = roll_out(policy, [10, 11, 12, 13, 14, 15, 16, 17])
    alone = roll_out(policy, [13], places=3)
    np.testing.assert_array_equal(alone[0].actions_TA, together[3].actions_TA)
    assert alone[0].record.most_isolated_distance == together[3].record.most_isolated_distance


def test_memory_is_exact_at_a_demonstrated_image(dataset, cache):
    policy, shown = policy_of("mcnn+mlp", cache), glance_demonstrations()
    study = open_study(asked("mcnn+mlp"), cache)
    rows = policy.memories.rows_M
    actions, _ = policy.act(study.demonstrations.observations_ND[rows])
    np.testing.assert_array_equal(actions, shown.actions_NA[rows])


def test_each_image_is_explained_by_the_image_that_its_memory_is(dataset, cache):
    policy, recorded = policy_of("mcnn+mlp", cache, demonstrations=8), glance_demonstrations()
    shown = explain_rollout(policy, run_as_evaluated(policy, find_task(TASK), 1_000_003), find_task(TASK))
    nearest = shown.nearest
    apart_TM = policy.standardiser(policy.encode(shown.images_TX))[:, None] - policy.memories.observations_MD
    np.testing.assert_array_equal(nearest.index_T, np.linalg.norm(apart_TM, axis=2).argmin(1))
    frames = frames_of(shown, 3)
    assert frames.steps == [0, 2, 5]
    for step, now, memory in zip(frames.steps, frames.now, frames.memory, strict=True):
        episode, then = nearest.places_T[step]
        remembered = recorded.observations_of(episode)[then]
        for picture, image_X in ((now, shown.images_TX[step]), (memory, remembered)):
            np.testing.assert_array_equal(picture[::5, ::5], np.rint(255 * image_X.reshape(48, 48, 3)))
    assert (nearest.spread.held_out, nearest.spread.episodes) == (True, 4)
    page = explanation_page(shown, frames)
    assert page.count("data:image/jpeg;base64,") == 6
    assert "embedding " in page


def test_monitor_of_images_goes_by_their_embeddings(dataset, cache):
    policy, task = policy_of("mcnn+mlp", cache, demonstrations=8), find_task(TASK)
    held_out = held_out_demonstrations(policy, learned_from(policy), None)
    assert held_out.episodes == 4
    monitor = Monitor.calibrate(policy, held_out, alpha=0.4)
    rollout = run_as_evaluated(policy, task, 1_000_000)
    ((good, distance_T),) = watch_rollouts(monitor, [rollout], task, least_return=0.0)
    assert not good
    assert distance_T.max() == pytest.approx(rollout.record.most_isolated_distance, rel=1e-4)
    named = held_out_demonstrations(policy, learned_from(policy), "mcnn/glance/images-v0")
    np.testing.assert_array_equal(named.observations_ND, held_out.observations_ND)


def test_artefacts_name_the_encoder(dataset, cache, tmp_path):
    save_policy(policy_of("bc", cache), tmp_path / "policy")
    description = json.loads((tmp_path / "policy" / "policy.json").read_text())
    assert description["encoder"] == description["card"]["encoder"] == random_encoder("small").description()


def test_policies_share_the_encoders_file_where_the_system_can(dataset, cache, tmp_path):
    policy = policy_of("bc", cache)
    files = []
    for name in "ab":
        save_policy(policy, cache / f"policy-{name}")
        files.append((cache / f"policy-{name}" / "encoder.safetensors").stat())
    assert files[0].st_ino == files[1].st_ino
    policy.encoder.file = tmp_path / "gone"
    save_policy(policy, cache / "policy-c")
    assert (cache / "policy-c" / "encoder.safetensors").stat().st_ino != files[0].st_ino
    load_policy(cache / "policy-c")


def test_directory_with_another_encoder_is_refused(dataset, cache, tmp_path):
    policy = policy_of("bc", cache)
    policy.encoder = random_encoder("small", seed=1)
    true = random_encoder("small").description()
    policy.encoder.description = lambda: true
    save_policy(policy, tmp_path / "policy")
    with pytest.raises(ArtifactError, match="other weights"):
        load_policy(tmp_path / "policy")


def test_images_straight_to_act_are_refused_with_the_width(dataset, cache):
    with pytest.raises(DatasetError, match="512"):
        policy_of("bc", cache).act(glance_demonstrations().observations_ND[:2])


def test_members_of_another_encoder_have_other_identities(dataset, cache, tmp_path):
    write_encoder(random_encoder("small", seed=2), tmp_path / "other")
    studies = [open_study(asked("bc", encoder=name), cache) for name in ("random-small", str(tmp_path / "other"))]
    assert len({study.identity(asked("bc").members()[0]) for study in studies}) == 2


def test_encoder_of_a_directory_is_taken(dataset, cache, tmp_path):
    write_encoder(random_encoder("small", seed=2), tmp_path / "mine")
    study = open_study(asked("bc", encoder=str(tmp_path / "mine")), cache)
    assert study.encoder.sha256 == find_encoder(str(tmp_path / "mine")).sha256


def test_task_of_images_asks_for_an_encoder(dataset, monkeypatch):
    task = Task(
        id="eyes-v0", environment="tests.environments:Glance-v0", datasets=("mcnn/glance/images-v0",), images=True
    )
    monkeypatch.setitem(CATALOGUE, "eyes-v0", task)
    with pytest.raises(ConfigError, match="mcnn encoder train eyes-v0"):
        open_study(asked("bc", task="eyes-v0", encoder=None))


def test_encoder_for_what_is_no_image_is_refused(pen_dataset):
    with pytest.raises(ConfigError, match="an observation of pen-expert-v1 has 45 numbers; leave --encoder out"):
        open_study(asked("bc", task="pen-expert-v1", dataset=pen_dataset))


def test_policy_of_images_is_not_exported_without_its_eyes(dataset, cache, tmp_path):
    with pytest.raises(ConfigError, match="through the encoder random-small, which is not exported"):
        export_policy(policy_of("bc", cache), tmp_path / "policy.onnx")


def test_sweep_certificate_and_replay_work_on_images(dataset, tmp_path, ray_running):
    config = asked("mcnn+mlp", episodes=2, name="images")
    result = run_sweep(config, tmp_path)
    assert [row.episode_return.n for row in result.rows] == [2]
    (certificate,) = result.certificates.values()
    assert certificate.inexact_memories == 0
    member = result.rows[0].member
    folder = result.folder / "members" / result.studies.of(member).identity(member)
    for rollout in read_rollouts(folder / "episodes.parquet"):
        assert replay(rollout).same(rollout)
    # As an MLflow model it takes images, too.
    client = open_store(tmp_path, "the model")
    (run,) = client.search_runs(
        [client.get_run(result.run_id).info.experiment_id], f"tags.`mlflow.parentRunId` = '{result.run_id}'"
    )
    loaded = mlflow.pyfunc.load_model(find_model(client, run).artifact_location)
    assert str(loaded.metadata.signature.inputs) == "[Tensor('float32', (-1, 6912))]"
    images_BX, policy = glance_demonstrations().observations_ND[:5], load_policy(folder / "policy")
    np.testing.assert_array_equal(loaded.predict(images_BX), policy.act(policy.encode(images_BX))[0])
    loaded.predict(loaded.input_example)
    alone = certify_directories([folder / "policy"], states=10)
    assert {"demonstrations", "uniform", "around memories"} <= {found.name for found in alone.checked}
