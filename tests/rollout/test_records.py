from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcnn_ray.errors import ArtifactError, ConfigError
from mcnn_ray.rollout.episode import EpisodeRecord, Rollout
from mcnn_ray.rollout.records import read_records, read_rollout, read_rollouts, write_rollouts

numbers = st.floats(allow_nan=False)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
records = st.builds(
    EpisodeRecord,
    member=texts,
    task=texts,
    episode_seed=st.integers(0, 2**63 - 1),
    episode_return=numbers,
    normalised_score=st.none() | numbers,
    success=st.none() | st.booleans(),
    length=st.integers(0, 10**6),
    most_isolated_distance=st.none() | numbers,
    mean_memory_weight=st.none() | numbers,
    simulator=texts,
    versions=st.dictionaries(texts, texts, max_size=3),
    wall_s=st.floats(0, 1e6),
    subtasks=st.none() | st.dictionaries(texts, st.booleans(), max_size=3),
)
actions = st.lists(st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=2), min_size=1, max_size=4)
rollouts = st.builds(
    lambda record, rows: Rollout(record=record, actions_TA=np.array(rows, np.float32)), record=records, rows=actions
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # each example overwrites the one file
@given(written=st.lists(rollouts, max_size=4))
def test_records_and_actions_come_back_to_the_last_bit_whatever_is_unknown(tmp_path, written):
    file = tmp_path / "episodes.parquet"
    write_rollouts(file, written)
    assert read_records(file) == [rollout.record for rollout in written]
    for found, rollout in zip(read_rollouts(file), written, strict=True):
        assert found.record == rollout.record
        assert found.actions_TA.tobytes() == rollout.actions_TA.tobytes()


@pytest.fixture
def file(tmp_path):
    record = EpisodeRecord(
        member="m",
        task="t",
        episode_seed=7,
        episode_return=0.1,
        normalised_score=None,
        success=None,
        length=1,
        most_isolated_distance=None,
        mean_memory_weight=None,
        simulator="s",
        versions={"mujoco": "3"},
        wall_s=1.0,
    )
    ones = np.ones((1, 2), np.float32)
    later = (replace(record, episode_seed=seed) for seed in (8, 9))
    write_rollouts(tmp_path / "episodes.parquet", [Rollout(record=each, actions_TA=ones) for each in (record, *later)])
    return tmp_path / "episodes.parquet"


@pytest.mark.parametrize("damage", ["cut", "foreign", "missing"])
def test_file_that_holds_no_episodes_is_told_in_one_sentence(file, damage):
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-20])
    elif damage == "foreign":
        file.write_text("return,seed")
    else:
        file.unlink()
    for read in (read_records, read_rollouts):
        with pytest.raises(ArtifactError, match="episodes.parquet (is not a readable|does not exist)") as caught:
            read(file)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("change", ["lacks a field", "has a field more"])
def test_file_of_another_version_is_told_in_one_sentence(file, change):
    table = pq.read_table(file, partitioning=None)
    if change == "lacks a field":
        pq.write_table(table.drop_columns(["length"]), file)
    else:
        pq.write_table(table.append_column("mood", table.column("task")), file)
    with pytest.raises(ArtifactError, match="of another version"):
        read_rollouts(file)


def test_episode_that_is_not_in_the_file_is_told_with_those_that_are(file):
    with pytest.raises(ConfigError, match="no episode of seed 3, but 7 to 9"):
        read_rollout(file, 3)
    with pytest.raises(ConfigError, match="holds 3 episodes; name one by --episode-seed, of 7 to 9"):
        read_rollout(file, None)


def test_episodes_recorded_before_there_were_subtasks_are_read(file):
    pq.write_table(pq.read_table(file, partitioning=None).drop_columns(["subtasks"]), file)
    assert [record.subtasks for record in read_records(file)] == [None] * 3
    assert read_rollout(file, 8).record.subtasks is None
