import copy
import dataclasses

import gymnasium as gym
import minari
import numpy as np
import pytest
from minari.data_collector import EpisodeBuffer

from mcnn_ray.data.checks import check_demonstrations
from mcnn_ray.data.demonstrations import Demonstrations
from mcnn_ray.data.minari_store import dataset_exists, read_minari, task_demonstrations, write_minari
from mcnn_ray.errors import ConfigError, DatasetError
from mcnn_ray.tasks.catalogue import ADROIT_NAMES, CATALOGUE, find_task
from mcnn_ray.tasks.environments import make_environment


@pytest.fixture(scope="module")
def env():
    return make_environment(CATALOGUE["pen-expert-v1"])


def test_demonstrations_come_back_as_they_were_written(pen_demonstrations, pen_dataset):
    back = read_minari(pen_dataset)
    for name in ("observations_ND", "actions_NA", "rewards_N", "offsets", "final_observations_ED"):
        np.testing.assert_array_equal(getattr(back, name), getattr(pen_demonstrations, name))
    assert back.sha256 == pen_demonstrations.sha256
    assert back.provenance["expert"] == "pen"


def test_plain_minari_code_reads_what_we_write(pen_demonstrations, pen_dataset):
    dataset = minari.load_dataset(pen_dataset)
    assert dataset.total_steps == pen_demonstrations.steps
    episode = dataset[0]
    assert episode.observations.shape == (101, 45)
    assert episode.truncations.tolist() == [False] * 99 + [True]
    assert dataset.recover_environment().spec.max_episode_steps == 100
    assert pen_dataset in minari.list_local_datasets()


def test_last_observation_is_repeated_where_none_was_recorded(pen_demonstrations, env):
    write_minari(
        dataclasses.replace(pen_demonstrations, final_observations_ED=None), "mcnn/pen/nofinal-v0", env, description="t"
    )
    episode = minari.load_dataset("mcnn/pen/nofinal-v0")[0]
    np.testing.assert_array_equal(episode.observations[-1], episode.observations[-2])


def test_existing_dataset_is_kept_unless_overwriting_is_asked(pen_demonstrations, pen_dataset, env):
    with pytest.raises(ConfigError, match="exists already"):
        write_minari(pen_demonstrations, pen_dataset, env, description="t")
    write_minari(pen_demonstrations.subset(2), "mcnn/pen/twice-v0", env, description="t")
    write_minari(pen_demonstrations.subset(3), "mcnn/pen/twice-v0", env, description="t", overwrite=True)
    assert read_minari("mcnn/pen/twice-v0").episodes == 3


def test_failure_while_writing_leaves_no_dataset_and_no_litter(pen_demonstrations, env, monkeypatch, minari_store):
    monkeypatch.setattr(
        minari, "create_dataset_from_buffers", lambda *a, **k: (_ for _ in ()).throw(OSError("disk full"))
    )
    before = sorted(minari_store.iterdir())
    with pytest.raises(OSError, match="disk full"):
        write_minari(pen_demonstrations, "mcnn/pen/broken-v0", env, description="t")
    assert not dataset_exists("mcnn/pen/broken-v0")
    assert sorted(minari_store.iterdir()) == before


@pytest.mark.parametrize("name", ["", "a b", "../escape-v0", "mcnn/../../escape-v0", "/abs-v0", "mcnn//x-v0"])
def test_names_that_are_no_dataset_ids_are_refused(pen_demonstrations, env, name):
    with pytest.raises(ConfigError, match=r"not a Minari dataset id|would leave"):
        write_minari(pen_demonstrations, name, env, description="t")


def test_demonstrations_of_another_environment_are_refused(pen_demonstrations):
    other = make_environment(CATALOGUE["door-expert-v1"])
    with pytest.raises(DatasetError, match="45 observation numbers, the environment 39"):
        write_minari(pen_demonstrations, "mcnn/pen/wrong-v0", other, description="t")


def test_damaged_dataset_is_refused(pen_demonstrations, env, minari_store):
    write_minari(pen_demonstrations, "mcnn/pen/cut-v0", env, description="t")
    file = minari_store / "mcnn/pen/cut-v0/data/main_data.hdf5"
    file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(DatasetError, match="is damaged"):
        read_minari("mcnn/pen/cut-v0")


def test_missing_dataset_says_how_to_get_it():
    with pytest.raises(DatasetError, match="minari download D4RL/hammer/human-v2"):
        task_demonstrations(CATALOGUE["hammer-human-v1"])
    with pytest.raises(DatasetError, match="mcnn data collect hammer-expert-v1"):
        task_demonstrations(CATALOGUE["hammer-expert-v1"])
    with pytest.raises(DatasetError, match="minari download me/nothing-v0"):
        read_minari("me/nothing-v0")


def test_dataset_without_episodes_is_refused(env):
    minari.create_dataset_from_buffers("mcnn/pen/empty-v0", [], env=gym.spec("AdroitHandPen-v1"))
    with pytest.raises(DatasetError, match="is empty"):
        read_minari("mcnn/pen/empty-v0")


def test_nested_observations_are_flattened_in_gymnasium_s_order():
    spaces = gym.spaces
    observation_space = spaces.Dict(
        {"b": spaces.Box(-1, 1, (2,)), "a": spaces.Box(-1, 1, (1,)), "t": spaces.Tuple([spaces.Box(-1, 1, (1, 2))])}
    )
    samples = [observation_space.sample() for _ in range(4)]
    stacked = {
        "a": np.stack([s["a"] for s in samples]),
        "b": np.stack([s["b"] for s in samples]),
        "t": (np.stack([s["t"][0] for s in samples]),),
    }
    buffer = EpisodeBuffer(
        id=0,
        observations=stacked,
        actions=np.zeros((3, 1), np.float32),
        rewards=[0.0] * 3,
        terminations=[False] * 3,
        truncations=[False, False, True],
    )
    minari.create_dataset_from_buffers(
        "mcnn/nested-v0", [buffer], observation_space=observation_space, action_space=spaces.Box(-1, 1, (1,))
    )
    expected = np.stack([spaces.flatten(observation_space, sample) for sample in samples])
    data = read_minari("mcnn/nested-v0")
    np.testing.assert_allclose(data.observations_ND, expected[:3])
    np.testing.assert_allclose(data.final_observations_ED, expected[3:])


def test_own_task_reads_its_dataset(pen_dataset):
    assert task_demonstrations(find_task(f"AdroitHandPen-v1@{pen_dataset}")).episodes == 6


@pytest.mark.parametrize("name", ADROIT_NAMES)
def test_d4rl_s_datasets_are_read_under_their_ids(name, tmp_path, monkeypatch):
    """Laid out as Minari's own: float64 observations, one more than actions; human episodes longer than the task."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    made = gym.make(f"AdroitHand{name.capitalize()}-v1", max_episode_steps=300)
    for variant, steps in {"human": 30, "expert": 20, "cloned": 30}.items():
        task, dataset_id = CATALOGUE[f"{name}-{variant}-v1"], f"D4RL/{name}/{variant}-v2"
        with pytest.raises(DatasetError, match=f"download: minari download {dataset_id}"):
            task_demonstrations(task)
        buffers = [recorded(made, seed, steps) for seed in range(2)]
        minari.create_dataset_from_buffers(dataset_id, buffers, env=made, algorithm_name="None")
        read = task_demonstrations(task)
        assert read.source == dataset_id and read.lengths.tolist() == [steps, steps]
        np.testing.assert_array_equal(read.observations_ND[:steps], buffers[0].observations[:-1].astype(np.float32))
        np.testing.assert_array_equal(read.final_observations_ED[1], buffers[1].observations[-1].astype(np.float32))
        assert read.successes_E is None
        checked, space = check_demonstrations(read, task, constant_columns="ignore")
        assert checked.actions_NA.shape[1:] == space.shape


def recorded(env, seed, steps):
    observations, rewards = [copy.deepcopy(env.reset(seed=seed)[0])], []
    env.action_space.seed(seed)
    actions = [env.action_space.sample() for _ in range(steps)]
    for action in actions:
        obs, reward, *_ = env.step(action)
        observations.append(copy.deepcopy(obs))
        rewards.append(reward)
    ends = [False] * (steps - 1) + [True]
    return EpisodeBuffer(
        id=seed,
        observations=stacked(observations),
        actions=np.stack(actions),
        rewards=rewards,
        terminations=[False] * steps,
        truncations=ends,
    )


def stacked(values):
    """As Minari stacks what it records: in a dictionary, each part."""
    if isinstance(values[0], dict):
        return {name: stacked([value[name] for value in values]) for name in values[0]}
    return np.stack(values)


def test_success_comes_back_from_the_store_and_is_unknown_where_nobody_told(pen_demonstrations, env):
    told = dataclasses.replace(pen_demonstrations, successes_E=np.array([True, False, True, True, False, True]))
    for demonstrations in (told, dataclasses.replace(told, successes_E=None)):
        write_minari(demonstrations, "mcnn/pen/success-v0", env, description="t", overwrite=True)
        read = read_minari("mcnn/pen/success-v0").successes_E
        assert read is None if demonstrations.successes_E is None else read.tolist() == told.successes_E.tolist()


def test_goals_in_dict_observations_are_left_out_where_the_task_leaves_them_out(monkeypatch, tmp_path):
    """Laid out as D4RL/kitchen is: recorded in FrankaKitchen itself, whose observations are a dictionary with goals."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    task = CATALOGUE["kitchen-complete-v2"]
    make_environment(task)  # registers
    made = gym.make(
        "FrankaKitchen-v1",
        disable_env_checker=True,
        tasks_to_complete=list(task.subtasks),
        remove_task_when_completed=False,
    )
    buffers = [recorded(made, seed, steps) for seed, steps in enumerate((4, 3))]
    expected = [np.float32(buffer.observations["observation"]) for buffer in buffers]
    minari.create_dataset_from_buffers(task.datasets[0], buffers, env=made, algorithm_name="random")
    read = task_demonstrations(task)
    assert read.lengths.tolist() == [4, 3]
    np.testing.assert_array_equal(read.observations_ND, np.concatenate([seen[:-1] for seen in expected]))
    np.testing.assert_array_equal(read.final_observations_ED, [seen[-1] for seen in expected])
    np.testing.assert_array_equal(read.actions_NA, np.float32([a for buffer in buffers for a in buffer.actions]))
    checked, space = check_demonstrations(read, task, constant_columns="ignore")
    assert checked.observations_ND.shape[1:] == (59,) and checked.actions_NA.shape[1:] == space.shape
    # A task of a user's own sees all of it, goals too.
    assert read_minari(task.datasets[0]).observations_ND.shape[1] == 59 + 2 * 11
    with pytest.raises(DatasetError, match="has observations of achieved_goal, desired_goal, observation, not of 'x'"):
        read_minari(task.datasets[0], "x")


def test_joint_targets_are_refused_as_velocities_and_not_said_to_belong_to_the_plain_environment():
    relay, scripted = CATALOGUE["kitchen-relay-v0"], CATALOGUE["kitchen-scripted-v0"]
    env, rng = make_environment(relay), np.random.default_rng(0)
    targets = Demonstrations(
        observations_ND=rng.normal(size=(6, 30)).astype(np.float32),
        actions_NA=rng.uniform(env.action_space.low, env.action_space.high, (6, 9)).astype(np.float32),
        rewards_N=np.zeros(6, np.float32),
        offsets=np.array([0, 3, 6]),
        source="logs",
    )
    write_minari(targets, relay.datasets[0], env, description="t")
    assert check_demonstrations(task_demonstrations(relay), relay)[0].steps == 6
    with pytest.raises(ValueError, match="Environment cannot be recovered"):
        minari.load_dataset(relay.datasets[0]).recover_environment()
    with pytest.raises(DatasetError, match="has 30 observation numbers, the environment of kitchen-scripted-v0 has 59"):
        check_demonstrations(task_demonstrations(relay), scripted)
