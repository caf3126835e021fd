"""Encoders cloned from demonstrations, by function and by command."""

import json

import numpy as np
import pytest

from mcnn_ray.cli import main
from mcnn_ray.core.normalise import ActionScale
from mcnn_ray.data.minari_store import write_minari
from mcnn_ray.encoders.cloning import CloningSettings, clone_encoder
from mcnn_ray.encoders.encoder import read_encoder
from mcnn_ray.errors import ConfigError, DatasetError
from mcnn_ray.tasks.catalogue import find_task
from mcnn_ray.tasks.environments import make_environment
from tests.environments import glance_demonstrations

TASK = "tests.environments:Glance-v0@mcnn/glance/cloning-v0"
SCALE = ActionScale(low_A=np.full(1, -1, np.float32), high_A=np.full(1, 1, np.float32))


def test_cloned_network_gives_actions_of_episodes_it_has_not_seen():
    encoder = clone_encoder(glance_demonstrations(30), SCALE, CloningSettings(steps=60, batch_size=32))
    assert encoder.name == "bc-small"
    assert encoder.facts["held_out_mse"] < 0.3 * encoder.facts["held_out_mse_of_mean"]


def test_cloning_is_repeatable_and_tells_its_progress():
    settings, steps = CloningSettings(steps=3, batch_size=16), []
    first = clone_encoder(glance_demonstrations(), SCALE, settings, steps.append)
    assert first.sha256 == clone_encoder(glance_demonstrations(), SCALE, settings).sha256
    assert steps == [1, 2, 3]
    other = CloningSettings(steps=3, batch_size=16, seed=1)
    assert first.sha256 != clone_encoder(glance_demonstrations(), SCALE, other).sha256


def test_resnet34_can_be_cloned():
    settings = CloningSettings(architecture="resnet34", steps=1, batch_size=4)
    assert clone_encoder(glance_demonstrations(4), SCALE, settings).name == "bc-resnet34"


def test_what_cannot_be_cloned_is_refused():
    with pytest.raises(DatasetError, match="at least 2"):
        clone_encoder(glance_demonstrations(1), SCALE, CloningSettings())
    with pytest.raises(DatasetError, match="batch size is 64"):
        clone_encoder(glance_demonstrations(4), SCALE, CloningSettings())
    with pytest.raises(ConfigError, match="resnet34"):
        CloningSettings(architecture="resnet50")


def test_command_trains_once_and_keeps_what_is_there(tmp_path, capsys):
    write_minari(glance_demonstrations(), "mcnn/glance/cloning-v0", make_environment(find_task(TASK)), description="t")
    target = tmp_path / "bc"

    def train(steps):
        with pytest.raises(SystemExit) as ended:
            main(["encoder", "train", TASK, str(target), "--batch-size", "16", "--steps", str(steps), "--json"])
        return ended.value.code or 0, capsys.readouterr()

    status, captured = train(2)
    assert status == 0
    assert json.loads(captured.out)["sha256"] == read_encoder(target).sha256
    written = (target / "encoder.safetensors").stat()
    again = train(2)
    assert (again[0], again[1].out) == (0, captured.out)
    status, captured = train(3)
    assert status == 2
    assert "--overwrite" in captured.err
    assert (target / "encoder.safetensors").stat() == written
