import logging

import numpy as np
import pytest

from mcnn_ray.artifacts import MANIFEST
from mcnn_ray.errors import McnnError
from mcnn_ray.training.checkpoint import load_checkpoint, save_checkpoint
from mcnn_ray.training.pack import Pack
from mcnn_ray.training.run import curve_interval, train_pack
from tests.training.test_pack import PACK, member, training_data

IDS = [f"m{i}" for i in range(len(PACK))]


class Interrupted(Exception):
    pass


def stop_at(step):
    def report(done):
        if done >= step:
            raise Interrupted

    return report


def test_interrupted_run_continues_to_the_bits_of_an_undisturbed_one(tmp_path):
    whole, expected = train_pack(PACK, IDS, training_data(), tmp_path / "a", 0)
    for stop in (300, 700):
        with pytest.raises(Interrupted):
            train_pack(PACK, IDS, training_data(), tmp_path / "b", 0, stop_at(stop))
    taken = []
    resumed, curve = train_pack(PACK, IDS, training_data(), tmp_path / "b", 0, taken.append)
    assert min(taken) == 700
    np.testing.assert_array_equal(curve, expected)
    np.testing.assert_array_equal(resumed.layers(2)[0][0], whole.layers(2)[0][0])
    assert resumed.step == 1000


def test_curve_is_the_mean_loss_of_each_interval(tmp_path):
    losses = Pack(PACK, training_data()).train(1000)
    _, curve = train_pack(PACK, IDS, training_data(), tmp_path, 0)
    assert curve_interval(1000) == 100
    np.testing.assert_array_equal(curve, losses.reshape(10, 100, -1).mean(1))


def checkpoints(tmp_path):
    for steps in (100, 100, 100):
        pack = Pack(PACK, training_data())
        curve = load_checkpoint(tmp_path, pack, IDS)
        losses = pack.train(steps).mean(0)[None]
        save_checkpoint(tmp_path, pack, IDS, losses if curve is None else np.concatenate([curve, losses]))
    return sorted(tmp_path.glob("step-*"))


def test_only_the_newest_two_checkpoints_are_kept(tmp_path):
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000000200", "step-000000300"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("damage", ["cut", "manifest", "missing"])
def test_damaged_checkpoint_is_named_and_the_one_before_is_taken(tmp_path, damage, caplog):
    newest = checkpoints(tmp_path)[-1]
    weights = newest / "state.safetensors"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif damage == "manifest":
        (newest / MANIFEST).write_text("{")
    else:
        weights.unlink()
    pack = Pack(PACK, training_data())
    with caplog.at_level(logging.WARNING):
        curve = load_checkpoint(tmp_path, pack, IDS)
    assert pack.step == 200
    assert len(curve) == 2
    assert str(newest) in caplog.text


def test_checkpoint_of_other_members_is_not_used(tmp_path, caplog):
    checkpoints(tmp_path)
    pack = Pack(PACK, training_data())
    assert load_checkpoint(tmp_path, pack, [*IDS[:-1], "other"]) is None
    assert pack.step == 0
    assert "belongs to other members" in caplog.text


def test_loss_that_is_not_finite_names_the_member(tmp_path):
    data = training_data()
    data.actions_NA[0] = float("nan")
    with pytest.raises(McnnError, match=r"mcnn\+mlp lambda=1 memories=10% seed=0: the loss was no longer finite"):
        train_pack([member()], ["a"], data, tmp_path, 0)
