import multiprocessing
import time

import numpy as np
import pytest

from mcnn_ray.config import SweepConfig
from mcnn_ray.errors import ConfigError
from mcnn_ray.sweep import study as study_module
from mcnn_ray.sweep.studies import open_study


def config(pen_dataset, **values):
    base = {"task": "pen-expert-v1", "dataset": pen_dataset, "method": "mcnn+mlp", "memory_fraction": 0.05, "steps": 1}
    return SweepConfig.parse({**base, **values}, "test")


def test_codebook_comes_from_the_cache_when_nothing_that_makes_it_changed(pen_dataset, tmp_path, monkeypatch):
    asked = config(pen_dataset)
    first = open_study(asked)
    first.learn_codebooks(asked.members(), tmp_path)
    monkeypatch.setattr(study_module, "learn_codebook", lambda *a, **k: pytest.fail("learned again"))
    second = open_study(asked)
    second.learn_codebooks(asked.members(), tmp_path)
    (key,) = first.codebooks
    for name in ("rows_M", "edges_E2", "nearest_N", "distances_N"):
        np.testing.assert_array_equal(getattr(first.codebooks[key], name), getattr(second.codebooks[key], name))


@pytest.mark.parametrize(
    "change", [{"memory_fraction": 0.1}, {"memories": "random"}, {"memory_seed": 1}, {"demonstrations": 4}]
)
def test_codebook_is_learned_again_when_anything_that_makes_it_changed(pen_dataset, tmp_path, change):
    for asked in (config(pen_dataset), config(pen_dataset, **change)):
        open_study(asked).learn_codebooks(asked.members(), tmp_path)
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 2


def test_codebook_of_another_version_is_not_used(pen_dataset, tmp_path, monkeypatch):
    asked = config(pen_dataset)
    open_study(asked).learn_codebooks(asked.members(), tmp_path)
    monkeypatch.setattr(study_module, "_CODEBOOK_FORMAT", 99)
    open_study(asked).learn_codebooks(asked.members(), tmp_path)
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 2


def learn(dataset, store, cache, learned):
    import os

    os.environ["MINARI_DATASETS_PATH"] = store
    original = study_module.learn_codebook

    def slow(*args, **kwargs):
        with learned.get_lock():
            learned.value += 1
        time.sleep(1.0)
        return original(*args, **kwargs)

    study_module.learn_codebook = slow
    asked = config(dataset)
    open_study(asked).learn_codebooks(asked.members(), cache)


def test_two_processes_that_want_one_codebook_learn_it_once(pen_dataset, minari_store, tmp_path):
    context = multiprocessing.get_context("spawn")
    learned = context.Value("i", 0)
    arguments = (pen_dataset, str(minari_store), tmp_path, learned)
    processes = [context.Process(target=learn, args=arguments) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    assert learned.value == 1


def test_too_many_memories_for_the_distinct_observations_is_one_sentence(pen_dataset, tmp_path):
    asked = config(pen_dataset, memory_fraction=1.0)
    study = open_study(asked)
    study.obs_ND[300:] = study.obs_ND[:300]
    with pytest.raises(ConfigError, match="asks for 600 memories, but only 300 of the 600 observations are distinct"):
        study.learn_codebooks(asked.members(), tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_memory_action_is_the_expert_s_or_the_mean_over_the_cell(pen_dataset, tmp_path):
    asked = config(pen_dataset, memory_action=["expert", "mean"])
    study = open_study(asked)
    study.learn_codebooks(asked.members(), tmp_path)
    expert, mean = (study.memory_actions(member.memory_key) for member in asked.members())
    (book,) = study.codebooks.values()
    actions = study.demonstrations.actions_NA
    np.testing.assert_array_equal(expert, actions[book.rows_M])
    for memory in range(len(book.rows_M)):
        np.testing.assert_allclose(mean[memory], actions[book.nearest_N == memory].mean(0), atol=1e-6)


@pytest.mark.parametrize("kind", ["expert", "mean"])
def test_training_and_policy_agree_on_every_memory(pen_dataset, tmp_path, kind):
    asked = config(pen_dataset, memory_action=kind, hidden=8)
    (member,) = asked.members()
    study = open_study(asked)
    study.learn_codebooks([member], tmp_path)
    nearest = study.nearest_memories(member.memory_key)
    shapes = {"layers.0.weight": (45, 8), "layers.0.bias": 8, "layers.1.weight": (8, 24), "layers.1.bias": 24}
    policy = study.policy(member, {name: np.zeros(shape, np.float32) for name, shape in shapes.items()})
    (book,) = study.codebooks.values()
    np.testing.assert_array_equal(
        policy.act(study.demonstrations.observations_ND[book.rows_M])[0], nearest.actions_NA[book.rows_M]
    )
    told = policy.explain(study.demonstrations.observations_ND)
    np.testing.assert_array_equal(told.distance_B, nearest.distances_N)


@pytest.mark.parametrize(("unit", "numbers"), [("euclidean", 1.0), ("per-dimension", 45**0.5)])
def test_distance_in_other_units_is_another_lambda(pen_dataset, tmp_path, unit, numbers):
    asked = config(pen_dataset, distance=unit, **{"lambda": 3.0})
    (member,) = asked.members()
    study = open_study(asked)
    study.learn_codebooks([member], tmp_path)
    book = study.codebooks[member.codebook_key]
    np.testing.assert_allclose(study.nearest_memories(member.memory_key).distances_N * numbers, book.distances_N)
    parameters = {"layers.0.weight": np.zeros((45, 24), np.float32), "layers.0.bias": np.zeros(24, np.float32)}
    told = study.policy(member, parameters).explain(study.demonstrations.observations_ND)
    np.testing.assert_allclose(told.weight_B, np.exp(-3.0 * book.distances_N / numbers), rtol=1e-4, atol=1e-7)


def test_median_distance_gives_half_of_the_other_demonstrations_more_than_its_weight(pen_dataset, tmp_path):
    asked = config(pen_dataset, distance="median", **{"lambda": 1.0})
    (member,) = asked.members()
    study = open_study(asked)
    study.learn_codebooks([member], tmp_path)
    distances_N = study.nearest_memories(member.memory_key).distances_N
    others = np.setdiff1d(np.arange(len(distances_N)), study.codebooks[member.codebook_key].rows_M)
    assert np.median(distances_N[others]) == pytest.approx(1.0)


def test_median_of_no_distances_is_one_sentence(pen_dataset, tmp_path):
    asked = config(pen_dataset, distance="median", memory_fraction=1.0)
    study = open_study(asked)
    study.learn_codebooks(asked.members(), tmp_path)
    with pytest.raises(ConfigError, match="median distance to 100 % memories is 0"):
        study.nearest_memories(asked.members()[0].memory_key)


def test_oversampled_memories_are_drawn_as_many_times_as_asked(pen_dataset, tmp_path):
    asked = config(pen_dataset, method="bc", options={"oversampling": [3]})
    (member,) = asked.members()
    study = open_study(asked)
    study.learn_codebooks([member], tmp_path)
    data = study.training_data(member.data_key, [], "cpu")
    rows_M = study.codebooks[member.codebook_key].rows_M
    assert len(data.obs_ND) == study.rows(member) == 600 + 2 * len(rows_M)
    for name, table in (("obs_ND", study.obs_ND), ("actions_NA", study.units)):
        seen = getattr(data, name).numpy()
        _, counts = np.unique(np.concatenate([seen, table[rows_M[:1]]]), axis=0, return_counts=True)
        assert counts.max() == 4 and (counts == 3).sum() == len(rows_M) - 1, name


def test_raw_neighbours_are_near_in_raw_units(pen_dataset):
    asked = config(pen_dataset, method="1nn", options={"observations": ["standardised", "raw"]})
    study = open_study(asked)
    standardised, raw = (study.policy(member) for member in asked.members())
    obs_ND = study.demonstrations.observations_ND
    queries = obs_ND[:50] + np.random.default_rng(0).normal(0, 0.5, (50, 45))
    expected = np.linalg.norm(queries[:, None] - obs_ND[None], axis=2).argmin(1)
    np.testing.assert_array_equal(raw.explain(queries.astype(np.float32)).row_B, expected)
    assert (standardised.explain(queries.astype(np.float32)).row_B != expected).any()


def test_more_neighbours_than_steps_is_one_sentence(pen_dataset):
    asked = config(pen_dataset, method="vinn", options={"neighbours": [700]})
    with pytest.raises(ConfigError, match="neighbours is 700, but mcnn/pen/tests-v0 has 600 steps; ask for fewer"):
        open_study(asked).policy(asked.members()[0])
