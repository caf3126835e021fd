import h5py
import numpy as np
import pytest

from mcnn_ray.data.readers import read_file
from mcnn_ray.errors import ConfigError, DatasetError

OBS, ACTIONS, REWARDS = np.ones((6, 3)), np.zeros((6, 2)), np.arange(6.0)


def write(path, **arrays):
    arrays = {"observations": OBS, "actions": ACTIONS, "rewards": REWARDS, **arrays}
    arrays = {name: array for name, array in arrays.items() if array is not None}
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                file[name] = array
    return path


@pytest.fixture(params=["d.npz", "d.hdf5"])
def path(request, tmp_path):
    return tmp_path / request.param


def test_lengths_give_the_episodes(path):
    data = read_file(write(path, episode_lengths=np.array([4, 2])))
    assert data.lengths.tolist() == [4, 2]
    assert data.observations_ND.dtype == np.float32
    assert data.returns.tolist() == [6, 9]


def test_terminals_and_timeouts_give_the_episodes_as_in_d4rl(path):
    ends = {"terminals": np.array([0, 1, 0, 0, 0, 0], bool), "timeouts": np.array([0, 0, 0, 1, 0, 0], bool)}
    assert read_file(write(path, **ends)).lengths.tolist() == [2, 2, 2]


def test_unfinished_last_episode_is_kept(path):
    assert read_file(write(path, timeouts=np.array([0, 0, 0, 1, 0, 0], bool))).lengths.tolist() == [4, 2]


def test_file_without_ends_needs_a_horizon(path):
    with pytest.raises(DatasetError, match="tells no episode ends.*--horizon"):
        read_file(write(path))
    assert read_file(path, horizon=4).lengths.tolist() == [4, 2]
    assert read_file(path, horizon=3).lengths.tolist() == [3, 3]


@pytest.mark.parametrize("missing", ["observations", "actions"])
def test_missing_array_is_named(path, missing):
    with pytest.raises(DatasetError, match=f"no array '{missing}'"):
        read_file(write(path, episode_lengths=np.array([6]), **{missing: None}))


def test_missing_rewards_are_zero(path):
    assert read_file(write(path, rewards=None, episode_lengths=np.array([6]))).rewards_N.tolist() == [0] * 6


def test_lengths_that_do_not_add_up_are_refused(path):
    with pytest.raises(DatasetError, match="do not add up"):
        read_file(write(path, episode_lengths=np.array([5])))


@pytest.mark.parametrize("kept", [0, 10, 0.5, 0.99])
def test_file_cut_short_is_refused(path, kept):
    content = write(path, episode_lengths=np.array([6])).read_bytes()
    path.write_bytes(content[: kept if isinstance(kept, int) else int(kept * len(content))])
    with pytest.raises(DatasetError, match="cannot be read"):
        read_file(path)


def test_foreign_file_is_refused(path):
    path.write_text("hello")
    with pytest.raises(DatasetError, match="cannot be read"):
        read_file(path)


def test_text_arrays_are_refused(path):
    with pytest.raises(DatasetError, match="expected numbers"):
        read_file(write(path, actions=np.array([b"a"] * 6), episode_lengths=np.array([6])))


def test_other_endings_and_missing_files_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="demonstrations are read from"):
        read_file(tmp_path / "d.pkl")
    with pytest.raises(DatasetError, match="does not exist"):
        read_file(tmp_path / "d.npz")


def test_human_door_demonstrations_read_with_their_real_episodes(shared_data):
    data = read_file(shared_data / "adroit_door_human.npz")
    assert (data.episodes, data.steps) == (25, 6729)
    assert data.lengths.max() == 300


@pytest.mark.parametrize(
    "ends",
    [
        {"episode_lengths": np.array([b"3", b"3"])},
        {"episode_lengths": np.array([np.nan, 6.0])},
        {"timeouts": np.array([b"a"] * 6)},
        {"timeouts": np.zeros(5, bool)},
    ],
)
def test_ends_that_are_no_numbers_are_refused(path, ends):
    with pytest.raises(DatasetError, match=r"expected numbers|do not add up|has 5 entries"):
        read_file(write(path, **ends))


def test_array_in_place_of_named_ones_is_refused(tmp_path):
    with (tmp_path / "d.npz").open("wb") as file:
        np.save(file, OBS)
    with pytest.raises(DatasetError, match="cannot be read"):
        read_file(tmp_path / "d.npz")


def test_group_in_place_of_an_array_is_refused(tmp_path):
    with h5py.File(tmp_path / "d.hdf5", "w") as file:
        file.create_group("observations")
    with pytest.raises(DatasetError, match="cannot be read"):
        read_file(tmp_path / "d.hdf5")


def test_values_beyond_float32_are_refused_as_infinite(path):
    with pytest.raises(DatasetError, match="NaN or infinite observations"):
        read_file(write(path, observations=OBS * 1e300, episode_lengths=np.array([6])))
