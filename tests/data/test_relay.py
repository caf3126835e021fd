"""Logs of the Franka Kitchen: written from the simulator, read back, and damaged."""

import resource
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcnn_ray.data.mjl import Counts, MujocoLog, parse_mjl, write_mjl
from mcnn_ray.data.readers import read_file
from mcnn_ray.errors import ConfigError, DatasetError
from mcnn_ray.tasks.catalogue import CATALOGUE
from mcnn_ray.tasks.environments import make_environment

RELAY = CATALOGUE["kitchen-relay-v0"]
STEPS = 12


def simulate(seed):
    """Drive the kitchen's model by targets that change every 80 ms; a record each 2 ms."""
    import mujoco

    env = make_environment(RELAY)
    env.reset(seed=seed)
    model, data, rng = env.unwrapped.model, env.unwrapped.data, np.random.default_rng(seed)
    records, targets = [], []
    for k in range(40 * STEPS + 1):
        if k % 40 == 0:
            target = data.qpos[:9] + rng.uniform(-0.5, 0.5, 9)
            targets.append(np.clip(target, env.action_space.low, env.action_space.high).astype(np.float32))
            data.ctrl[:] = targets[-1]
        records.append([data.time, *data.qpos, *data.qvel, *data.ctrl])
        mujoco.mj_step(model, data)
    return MujocoLog(
        name="kitchen", counts=Counts(model.nq, model.nv, model.nu), records_TR=np.array(records, np.float32)
    )


@pytest.fixture(scope="module")
def logs():
    return [simulate(seed) for seed in (0, 1)]


@pytest.fixture
def folder(tmp_path, logs):
    for k, log in enumerate(logs):
        write_mjl(tmp_path / "demos" / f"friday_{k}" / "log.mjl", log)
    (tmp_path / "demos" / "friday_0" / "._log.mjl").write_bytes(b"macOS")
    return tmp_path / "demos"


def zipped(folder):
    with zipfile.ZipFile(folder.with_suffix(".zip"), "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(folder.rglob("*"), reverse=True):
            file.write(path, path.relative_to(folder.parent))
    return folder.with_suffix(".zip")


def test_log_comes_back_as_it_was_written(tmp_path):
    counts = Counts(4, 3, 2, nmocap=1, nsensordata=2, nuserdata=1)
    rows = np.random.default_rng(0).normal(size=(5, counts.record)).astype(np.float32)
    write_mjl(tmp_path / "a.mjl", MujocoLog(name="né", counts=counts, records_TR=rows))
    content = np.frombuffer((tmp_path / "a.mjl").read_bytes(), np.uint8)
    assert len(content) == 28 + 3 + 4 * 5 * (1 + 4 + 3 + 2 + 7 + 2 + 1)
    log = parse_mjl(content, "a.mjl")
    assert (log.name, log.counts) == ("né", counts)
    np.testing.assert_array_equal(log.records_TR, rows)
    for part, columns in ((log.qpos_TQ, slice(1, 5)), (log.qvel_TV, slice(5, 8)), (log.ctrl_TU, slice(8, 10))):
        np.testing.assert_array_equal(part, rows[:, columns])
    np.testing.assert_array_equal(parse_mjl(content, "a.mjl", every=2).time_T, rows[::2, 0])


def test_every_40th_record_is_a_step_of_positions_and_joint_targets(folder, logs):
    data = read_file(folder)
    assert data.lengths.tolist() == [STEPS, STEPS]
    for log, start, final in zip(logs, data.offsets, data.final_observations_ED, strict=False):
        kept = log.records_TR[::40]
        np.testing.assert_array_equal(data.observations_ND[start : start + STEPS], kept[:-1, 1:31])
        np.testing.assert_array_equal(data.actions_NA[start : start + STEPS], kept[:-1, -9:])
        np.testing.assert_array_equal(final, kept[-1, 1:31])
    assert data.provenance["seconds_a_step"] == pytest.approx(0.08, rel=1e-4)
    assert read_file(zipped(folder)).sha256 == data.sha256


def test_log_replayed_in_the_task_goes_through_the_logged_states(folder):
    data = read_file(folder)
    env = make_environment(RELAY)
    for episode in range(2):
        env.reset(seed=100 + episode)  # noise of its own: targets are absolute
        rows = slice(data.offsets[episode], data.offsets[episode + 1])
        states = [*data.observations_ND[rows][1:], data.final_observations_ED[episode]]
        for action, state in zip(data.actions_NA[rows], states, strict=True):
            env.step(action)
            np.testing.assert_allclose(env.unwrapped.data.qpos, state, rtol=0, atol=1e-6)


def test_rewards_are_those_of_objects_done_for_the_first_time(tmp_path, logs):
    rows = logs[0].records_TR.copy()
    rows[100:, 1 + 22] = -0.75  # the microwave's door, from step 2 on, and open it stays
    rows[200:300, 1 + 19] = 0.37  # the slide cabinet's
    write_mjl(tmp_path / "a.mjl", MujocoLog(name="", counts=logs[0].counts, records_TR=rows))
    assert read_file(tmp_path / "a.mjl").rewards_N.tolist() == [0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0]


def header(**changed):
    counts = {**dict(zip(Counts._fields, (30, 29, 9, 0, 0, 0), strict=True)), "name": 7, **changed}
    return np.array(list(counts.values()), "<i4").tobytes()


BODY = bytes(7 + 4 * 69 * 81)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "is cut: 0 bytes"),
        (header()[:20], "is cut: 20 bytes"),
        (header(), "a name of 7 bytes, in a file of 28"),
        (header() + BODY[:-1], "80 records of 276 bytes, and 275 bytes"),
        (header() + BODY[:100], "0 records of 276 bytes, and 93 bytes"),
        (header(nq=-30) + BODY, "is no .mjl log: its header says {'nq': -30"),
        (header(nq=2**31 - 1, nmocap=2**31 - 1) + BODY, "0 records of"),
        (header(name=2**31 - 1) + BODY, "a name of 2147483647 bytes"),
        (header(name=-1) + BODY, "a name of -1 bytes"),
        (header(nq=29, nv=30) + BODY, "a model with 29 positions and 9 actuators"),
        (header() + BODY[: 7 + 4 * 69 * 40], "is shorter than a step"),
        (header() + BODY[: 7 + 4 * 69 * 40] + b"\0\0\xc0\x7f" + BODY[7 + 4 * 69 * 40 + 4 :], "infinite.*record 40"),
    ],
)
def test_damaged_log_is_told_in_one_sentence(tmp_path, content, match):
    (tmp_path / "a.mjl").write_bytes(content)
    with pytest.raises(DatasetError, match=match) as caught:
        read_file(tmp_path / "a.mjl")
    assert "a.mjl" in str(caught.value) and "\n" not in str(caught.value)


def test_plain_log_of_that_layout_is_read_whatever_its_name_s_bytes(tmp_path):
    (tmp_path / "a.mjl").write_bytes(header() + b"\xff\xfe\0\0\0\0\0" + BODY[7:])
    assert read_file(tmp_path / "a.mjl").steps == 2


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # each example overwrites the one file
@given(
    length=st.integers(0, 28 + len(BODY)),
    flips=st.lists(st.tuples(st.integers(0, 28 + len(BODY) - 1) | st.integers(0, 34), st.integers(0, 7)), max_size=4),
    packed=st.booleans(),
)
def test_cut_and_flipped_logs_are_read_or_told_in_one_sentence_without_much_memory(tmp_path, length, flips, packed):
    content = bytearray(header() + BODY)
    for place, bit in flips:
        content[place] ^= 1 << bit
    path = tmp_path / ("a.zip" if packed else "a.mjl")
    if packed:
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("demos/a.mjl", bytes(content[:length]))
    else:
        path.write_bytes(content[:length])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        read_file(path)
    except DatasetError as error:
        assert "a.mjl" in str(error) and "\n" not in str(error)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_archives_are_read_or_told_in_one_sentence(tmp_path, data):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.mjl", header() + BODY)
    content = bytearray(path.read_bytes())
    for place, bit in data.draw(st.lists(st.tuples(st.integers(0, len(content) - 1), st.integers(0, 7)), max_size=3)):
        content[place] ^= 1 << bit
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        read_file(path)
    except DatasetError as error:
        assert "a.zip" in str(error) and "\n" not in str(error)


def test_logs_are_read_without_a_word(folder):
    """In a process of its own: what gymnasium-robotics prints, it prints when it is imported first."""
    program = "import sys, pathlib, mcnn_ray.data.readers as readers; readers.read_file(pathlib.Path(sys.argv[1]))"
    ended = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, check=True)
    assert ended.stdout + ended.stderr == ""


def test_folder_without_logs_and_files_of_other_kinds_are_told(tmp_path):
    with pytest.raises(DatasetError, match=r"holds no \.mjl log"):
        read_file(tmp_path)
    with pytest.raises(ConfigError, match=r"ends in '\.tar'"):
        read_file(tmp_path / "a.tar")
    with pytest.raises(DatasetError, match="does not exist"):
        read_file(tmp_path / "a.zip")
