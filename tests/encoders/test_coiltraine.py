"""coiltraine's checkpoint: the paper's encoder, and nothing else, comes out of it."""

import hashlib
import os

import numpy as np
import pytest
import torch

from mcnn_ray.encoders.coiltraine import read_coiltraine
from mcnn_ray.encoders.encoder import random_encoder
from mcnn_ray.errors import ArtifactError


@pytest.fixture(scope="module")
def state():
    """Named as coiltraine's CoILICRA with a ResNet34 is, with its other parts in small."""
    perception = {
        f"perception.{name}": torch.tensor(a) for name, a in random_encoder("resnet34", seed=5).weights.items()
    }
    perception["perception.bn1.num_batches_tracked"] = torch.tensor(660_000)
    perception["perception.fc.weight"] = torch.zeros(512, 1536)
    perception["perception.fc.bias"] = torch.zeros(512)
    others = {"measurements.layers.0.0.weight": torch.zeros(128, 1), "join.after_process.0.0.weight": torch.zeros(2, 2)}
    return perception | others | {"branches.branched_modules.0.layers.0.0.weight": torch.zeros(2, 2)}


def write(path, state):
    content = {
        "iteration": 660_000,
        "state_dict": state,
        "best_loss": 0.1,
        "optimizer": {"state": {}, "param_groups": []},
    }
    torch.save(content, path)
    return path


def test_perception_is_taken_and_the_files_hash_is_stated(state, tmp_path):
    path = write(tmp_path / "660000.pth", state)
    encoder = read_coiltraine(path)
    assert encoder.name == "cilrs-resnet34"
    assert encoder.sha256 == random_encoder("resnet34", seed=5).sha256
    assert encoder.facts == {"file": "660000.pth", "file_sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    assert encoder(np.full((1, 6912), 0.5, np.float32)).shape == (1, 512)


def test_checkpoint_of_the_old_file_format_is_read(state, tmp_path):
    torch.save({"state_dict": state}, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    assert read_coiltraine(tmp_path / "old.pth").sha256 == random_encoder("resnet34", seed=5).sha256


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"perception.layer3.4.bn1.bias": None}, r"perception.layer3.4.bn1.bias has the shape None"),
        ({"perception.layer5.0.conv1.weight": torch.zeros(1)}, r"layer5.0.conv1.weight"),
        ({"perception.conv1.weight": torch.zeros(64, 3, 3, 3)}, r"\(64, 3, 3, 3\), expected \(64, 3, 7, 7\)"),
        ({"perception.conv1.weight": 0.5}, r"conv1.weight has the shape None"),
    ],
)
def test_another_network_is_refused_by_name(state, tmp_path, change, named):
    other = {name: value for name, value in (state | change).items() if value is not None}
    with pytest.raises(ArtifactError, match=named):
        read_coiltraine(write(tmp_path / "other.pth", other))


class Payload:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_code_in_a_checkpoint_is_not_run(state, tmp_path):
    torch.save({"state_dict": state, "hook": Payload(tmp_path / "ran")}, tmp_path / "evil.pth")
    with pytest.raises(ArtifactError, match="more than tensors"):
        read_coiltraine(tmp_path / "evil.pth")
    assert not (tmp_path / "ran").exists()


def test_what_is_no_checkpoint_is_refused(tmp_path):
    (tmp_path / "text.pth").write_text("hello")
    (tmp_path / "two.pth").write_text("hi\n")  # torch's own word for it is a number
    torch.save([1, 2], tmp_path / "list.pth")
    (tmp_path / "cut.pth").write_bytes((tmp_path / "list.pth").read_bytes()[:100])
    for name in ("text", "two", "list", "cut", "none"):
        with pytest.raises(ArtifactError, match=rf"{name}.pth .*[a-z]{{5}}"):
            read_coiltraine(tmp_path / f"{name}.pth")
