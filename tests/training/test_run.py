import errno
import json
import logging

import numpy as np
import pytest

from mcnn_ray.artifacts import MANIFEST
from mcnn_ray.errors import ArtifactError
from mcnn_ray.training import checkpoint as checkpoint_module
from mcnn_ray.training import run as run_module
from mcnn_ray.training.checkpoint import CheckpointWriter, load_checkpoint, read_curve
from mcnn_ray.training.pack import Pack
from mcnn_ray.training.run import Reports, curve_interval, train_pack
from tests.training.test_pack import PACK, layers, member, training_data

IDS = [f"m{i}" for i in range(len(PACK))]


class Interrupted(Exception):
    pass


def stop_at(step):
    def report(done):
        if done >= step:
            raise Interrupted

    return Reports(progress=report)


def test_interrupted_run_continues_to_the_bits_of_an_undisturbed_one(tmp_path):
    whole = train_pack(PACK, IDS, training_data(), tmp_path / "a", 0)
    for stop in (300, 700):
        with pytest.raises(Interrupted):
            train_pack(PACK, IDS, training_data(), tmp_path / "b", 0, stop_at(stop))
    taken = []
    resumed = train_pack(PACK, IDS, training_data(), tmp_path / "b", 0, Reports(progress=taken.append))
    assert min(taken) == 700
    np.testing.assert_array_equal(resumed.curve_SP, whole.curve_SP)
    np.testing.assert_array_equal(layers(resumed.pack, 2)[0][0], layers(whole.pack, 2)[0][0])
    assert resumed.pack.step == 1000


def test_run_asked_to_stop_within_an_interval_leaves_a_checkpoint_and_continues_to_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "_CURVE_POINTS", 2)
    losses = Pack(PACK, training_data()).train(1000)
    whole = train_pack(PACK, IDS, training_data(), tmp_path / "a", 3600)
    assert curve_interval(1000) == 500
    np.testing.assert_allclose(whole.curve_SP, losses.reshape(2, 500, -1).mean(1), rtol=1e-5)
    taken = []
    reports = Reports(progress=taken.append, stopping=lambda: taken[-1:] == [200] or len(taken) > 4)
    for end in (300, 600):
        stopped = train_pack(PACK, IDS, training_data(), tmp_path / "b", 3600, reports)
        assert (stopped.pack.step, stopped.finished) == (end, False)
        assert (tmp_path / "b" / f"step-{end:09d}").is_dir()
        np.testing.assert_array_equal(read_curve(tmp_path / "b", 500), whole.curve_SP[: end // 500])
    resumed = train_pack(PACK, IDS, training_data(), tmp_path / "b", 3600)
    assert resumed.finished
    np.testing.assert_array_equal(resumed.curve_SP, whole.curve_SP)
    np.testing.assert_array_equal(layers(resumed.pack, 2)[0][0], layers(whole.pack, 2)[0][0])


def test_curve_is_the_mean_loss_of_each_interval(tmp_path):
    losses = Pack(PACK, training_data()).train(1000)
    trained = train_pack(PACK, IDS, training_data(), tmp_path, 0)
    assert curve_interval(1000) == 100
    np.testing.assert_array_equal(trained.curve_SP, losses.reshape(10, 100, -1).mean(1))


def checkpoints(tmp_path):
    pack, curve = Pack(PACK, training_data()), []
    with CheckpointWriter(tmp_path, IDS) as writer:
        for _ in range(3):
            curve.append(pack.train(100).mean(0))
            writer.save(pack, np.stack(curve), {})
    return sorted(tmp_path.glob("step-*"))


def test_only_the_newest_two_checkpoints_are_kept(tmp_path):
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000000200", "step-000000300"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_checkpoint_is_of_the_step_at_which_it_was_asked_for(tmp_path):
    """The pack trains on while its state is written."""
    pack, other = Pack(PACK, training_data()), Pack(PACK, training_data())
    losses = pack.train(100)
    expected = pack.state()
    with CheckpointWriter(tmp_path, IDS) as writer:
        writer.save(pack, losses, {})
        pack.train(100)
    load_checkpoint(tmp_path, other, IDS)
    for name, array in other.state().items():
        np.testing.assert_array_equal(array, expected[name])


@pytest.mark.parametrize("damage", ["cut", "manifest", "missing", "format"])
def test_damaged_checkpoint_is_named_and_the_one_before_is_taken(tmp_path, damage, caplog):
    newest = checkpoints(tmp_path)[-1]
    weights = newest / "state.safetensors"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif damage == "manifest":
        (newest / MANIFEST).write_text("{")
    elif damage == "format":
        description = json.loads((newest / "checkpoint.json").read_text())
        (newest / "checkpoint.json").write_text(json.dumps({**description, "format": 99}))
    else:
        weights.unlink()
    pack = Pack(PACK, training_data())
    with caplog.at_level(logging.WARNING):
        resumed = load_checkpoint(tmp_path, pack, IDS)
    assert pack.step == 200
    assert len(resumed.curve_SP) == 2
    assert str(newest) in caplog.text


def test_checkpoint_of_other_members_is_not_used_and_both_are_named(tmp_path, caplog):
    checkpoints(tmp_path)
    pack = Pack(PACK, training_data())
    assert load_checkpoint(tmp_path, pack, [*IDS[:-1], "other"]) is None
    assert pack.step == 0
    assert "it belongs to other members (m0, m1, m2, m3, m4), not to m0, m1, m2, m3, other" in caplog.text


def test_checkpoint_of_another_format_is_told_with_both(tmp_path, caplog, monkeypatch):
    checkpoints(tmp_path)
    monkeypatch.setattr(checkpoint_module, "FORMAT", 99)
    assert load_checkpoint(tmp_path, Pack(PACK, training_data()), IDS) is None
    assert "it has the format 3, this version reads 99" in caplog.text


def test_full_disk_is_one_sentence_and_earlier_checkpoints_stay(tmp_path, monkeypatch):
    before = [path.name for path in checkpoints(tmp_path)]

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint_module, "save_file", full)
    with pytest.raises(ArtifactError, match="No space left on device; earlier ones stay, make room"):
        train_pack(PACK, IDS, training_data(), tmp_path, 0)
    assert [path.name for path in sorted(tmp_path.iterdir())] == before
    monkeypatch.undo()
    assert train_pack(PACK, IDS, training_data(), tmp_path, 0).pack.step == 1000


def diverging(steps=1000):
    """Three members of which the middle one's loss overflows at once."""
    unstable = member("bc", seed=1, steps=steps, learning_rate=1e30)
    return [member(seed=0, steps=steps), unstable, member(seed=2, steps=steps)]


def test_member_whose_loss_is_not_finite_leaves_and_the_others_do_not_notice(tmp_path):
    members = diverging()
    trained = train_pack(members, ["a", "b", "c"], training_data(), tmp_path / "x", 0)
    alone = train_pack([members[0], members[2]], ["a", "c"], training_data(), tmp_path / "y", 0)
    assert list(trained.failures) == ["b"]
    assert trained.failures["b"].startswith("the loss was no longer finite by step")
    assert "lower the learning rate (1e+30)" in trained.failures["b"]
    assert trained.positions == [0, 2]
    np.testing.assert_array_equal(trained.curve_SP[:, [0, 2]], alone.curve_SP)
    assert np.isnan(trained.curve_SP[-1, 1])
    np.testing.assert_array_equal(layers(trained.pack, 1)[0][0], layers(alone.pack, 1)[0][0])


def test_run_that_lost_a_member_resumes_without_it(tmp_path):
    members = diverging()
    whole = train_pack(members, ["a", "b", "c"], training_data(), tmp_path / "x", 0)
    with pytest.raises(Interrupted):
        train_pack(members, ["a", "b", "c"], training_data(), tmp_path / "y", 0, stop_at(500))
    resumed = train_pack(members, ["a", "b", "c"], training_data(), tmp_path / "y", 0)
    assert resumed.failures == whole.failures
    np.testing.assert_array_equal(resumed.curve_SP, whole.curve_SP)


def test_training_ends_when_every_member_has_failed(tmp_path):
    data = training_data()
    data.actions_NA[:] = float("nan")
    trained = train_pack([member(), member("bc")], ["a", "b"], data, tmp_path, 0)
    assert set(trained.failures) == {"a", "b"}
    assert trained.pack.step == 100
    assert not list(tmp_path.glob("step-*"))


def test_snapshots_come_at_the_asked_steps_and_once_after_a_resume(tmp_path):
    seen = []

    def reports(stop=10_000):
        return Reports(
            progress=stop_at(stop).progress, snapshot=lambda trained: seen.append(trained.pack.step), snapshot_steps=300
        )

    with pytest.raises(Interrupted):
        train_pack(PACK, IDS, training_data(), tmp_path, 0, reports(800))
    assert seen == [300, 600]
    train_pack(PACK, IDS, training_data(), tmp_path, 0, reports())
    assert seen == [300, 600, 900]
