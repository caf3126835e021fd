import numpy as np
import pytest

from mcnn_ray.data.demonstrations import Demonstrations
from mcnn_ray.errors import ConfigError, DatasetError


def make(lengths=(3, 2), **changes):
    steps = sum(lengths)
    values = {
        "observations_ND": np.arange(steps * 2, dtype=np.float32).reshape(steps, 2),
        "actions_NA": np.linspace(-1, 1, steps, dtype=np.float32)[:, None],
        "rewards_N": np.ones(steps, dtype=np.float32),
        "offsets": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        "source": "made",
    }
    return Demonstrations(**{**values, **changes})


def test_episode_facts_follow_the_boundaries():
    data = make()
    assert (data.steps, data.episodes) == (5, 2)
    assert data.lengths.tolist() == [3, 2]
    assert data.returns.tolist() == [3, 2]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["observations_ND", "actions_NA", "rewards_N"])
def test_non_finite_values_are_refused_with_their_place(name, bad):
    array = getattr(make(), name).copy()
    array[4] = bad
    with pytest.raises(DatasetError, match="in episode 1 at step 1"):
        make(**{name: array})


def test_empty_dataset_is_refused():
    with pytest.raises(DatasetError, match="is empty"):
        make(lengths=())


@pytest.mark.parametrize("offsets", [[0, 3], [0, 3, 3, 5], [1, 5], [0, 6]])
def test_boundaries_that_do_not_add_up_are_refused(offsets):
    with pytest.raises(DatasetError, match="do not add up"):
        make(offsets=np.array(offsets))


def test_subset_keeps_whole_episodes_and_smaller_ones_lie_inside_larger():
    data = make(lengths=(1, 2, 3, 4, 5))
    sources = {tuple(row) for row in data.observations_ND.tolist()}
    previous = set()
    for count in range(1, 6):
        subset = data.subset(count, seed=3)
        assert subset.episodes == count
        rows = {tuple(row) for row in subset.observations_ND.tolist()}
        assert previous <= rows <= sources
        previous = rows
    assert previous == sources
    with pytest.raises(ConfigError, match="which has 5"):
        data.subset(6)


def test_hash_follows_the_content_alone():
    assert make().sha256 == make(source="elsewhere").sha256
    assert make().sha256 != make(actions_NA=make().actions_NA * 2).sha256
    assert make((3, 2)).sha256 != make((2, 3)).sha256


def test_actions_outside_the_bounds_are_refused_or_clipped_as_asked():
    data = make()
    low, high = np.array([-0.5]), np.array([0.5])
    with pytest.raises(DatasetError, match="2 of 5 actions lie outside.*--clip-actions"):
        data.check_actions(low, high)
    clipped = data.check_actions(low, high, clip=True)
    assert clipped.actions_NA.min() == -0.5
    assert clipped.provenance["clipped_actions"] == 2
    assert data.check_actions(-np.ones(1), np.ones(1)) is data
    with pytest.raises(DatasetError, match="1 action numbers, the environment 2"):
        data.check_actions(-np.ones(2), np.ones(2))
