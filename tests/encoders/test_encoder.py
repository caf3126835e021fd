"""Encoders: what they are made of, what they refuse, and that others in a batch change nothing."""

import copy
import pickle

import numpy as np
import pytest
import torch

from mcnn_ray.artifacts import MANIFEST
from mcnn_ray.encoders.encoder import Encoder, find_encoder, random_encoder, read_encoder, write_encoder
from mcnn_ray.encoders.networks import weight_shapes
from mcnn_ray.errors import ArtifactError, ConfigError, DatasetError


@pytest.fixture(scope="module")
def small():
    return random_encoder("small")


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).random((8, 48 * 48 * 3), dtype=np.float32)


@pytest.mark.parametrize(("architecture", "parameters"), [("resnet34", 21_284_672), ("small", 242_720)])
def test_network_gives_512_numbers_and_has_the_known_number_of_parameters(architecture, parameters, images):
    encoder = random_encoder(architecture)
    embeddings = encoder(images[:2])
    assert embeddings.shape == (2, 512)
    assert embeddings.dtype == np.float32
    assert np.abs(embeddings[0] - embeddings[1]).max() > 0
    learned = {name: array for name, array in encoder.weights.items() if "running" not in name}
    assert sum(array.size for array in learned.values()) == parameters


def test_resnet34_has_torchvisions_names():
    names = set(weight_shapes("resnet34"))
    assert {"conv1.weight", "bn1.running_var", "layer1.0.conv1.weight", "layer3.5.bn2.bias"} <= names
    assert {"layer2.0.downsample.0.weight", "layer4.0.downsample.1.running_mean"} <= names
    assert not any("fc" in name or "layer1.0.downsample" in name for name in names)
    assert len(names) == 180


def test_resnet34_computes_what_its_definition_says(images):
    """Held against the definition written out by hand, with functions instead of modules."""
    encoder = random_encoder("resnet34")
    weights = {name: torch.tensor(array) for name, array in encoder.weights.items()}
    rng = torch.Generator().manual_seed(0)
    for name, tensor in weights.items():
        if "bn" in name or "downsample.1" in name:
            tensor.copy_(0.5 + torch.rand(tensor.shape, generator=rng))
    encoder = Encoder("random", "resnet34", {name: t.numpy() for name, t in weights.items()}, {})

    def normed(x, bn):
        mean, var, weight, bias = (
            weights[f"{bn}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")
        )
        return torch.nn.functional.batch_norm(x, mean, var, weight, bias)

    def conv(x, name, stride, padding):
        return torch.nn.functional.conv2d(x, weights[f"{name}.weight"], stride=stride, padding=padding)

    x = torch.from_numpy(images[:2]).view(-1, 48, 48, 3).permute(0, 3, 1, 2)
    x = torch.nn.functional.max_pool2d(normed(conv(x, "conv1", 2, 3), "bn1").relu(), 3, 2, 1)
    for layer, blocks in enumerate((3, 4, 6, 3), 1):
        for block in range(blocks):
            here, stride = f"layer{layer}.{block}", 2 if layer > 1 and block == 0 else 1
            y = normed(conv(x, f"{here}.conv1", stride, 1), f"{here}.bn1").relu()
            y = normed(conv(y, f"{here}.conv2", 1, 1), f"{here}.bn2")
            if stride == 2:
                x = normed(conv(x, f"{here}.downsample.0", 2, 0), f"{here}.downsample.1")
            x = (x + y).relu()
    assert x.shape == (2, 512, 2, 2)
    expected = torch.nn.functional.avg_pool2d(x, 2).flatten(1).numpy()
    np.testing.assert_allclose(encoder(images[:2]), expected, rtol=1e-4)


@pytest.mark.parametrize("architecture", ["resnet34", "small"])
def test_embedding_has_the_same_bits_whatever_else_is_in_the_batch(architecture, images):
    encoder = random_encoder(architecture)
    other = images[::-1].copy()
    other[3] = images[3]
    np.testing.assert_array_equal(encoder(other)[3], encoder(images)[3])


def test_random_weights_follow_from_the_seed_alone(small):
    assert random_encoder("small").sha256 == small.sha256
    assert random_encoder("small", seed=1).sha256 != small.sha256
    # What a policy states must be found again years later.
    assert small.sha256 == "8c26695772268676166fd9e0a0c30368df30c4d4caf4ac1ec0784a171748cc54"


def test_hash_changes_with_any_weight(small):
    weights = copy.deepcopy(small.weights)
    weights["9.weight"][-1, -1, -1, -1] += 1e-3
    assert Encoder("random", "small", weights, {}).sha256 != small.sha256
    assert Encoder("bc", "small", small.weights, {"seed": 9}).sha256 == small.sha256


def test_directory_gives_the_encoder_back(small, images, tmp_path):
    write_encoder(small, tmp_path / "encoder")
    back = find_encoder(str(tmp_path / "encoder"))
    assert back.description() == small.description()
    np.testing.assert_array_equal(back(images), small(images))


def test_encoder_travels_between_processes(small, images):
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(small))(images), small(images))  # noqa: S301  # our own


def test_other_weights_than_stated_are_refused(small, tmp_path):
    write_encoder(small, tmp_path / "encoder")
    write_encoder(random_encoder("small", seed=1), tmp_path / "other")
    (tmp_path / "encoder" / "encoder.safetensors").write_bytes(
        (tmp_path / "other" / "encoder.safetensors").read_bytes()
    )
    with pytest.raises(ArtifactError, match="damaged"):
        read_encoder(tmp_path / "encoder")
    manifest = (tmp_path / "encoder" / MANIFEST).read_text()
    sums = [
        (tmp_path / name / MANIFEST).read_text().split('"encoder.safetensors": "')[1][:64]
        for name in ("encoder", "other")
    ]
    (tmp_path / "encoder" / MANIFEST).write_text(manifest.replace(*sums))
    with pytest.raises(ArtifactError, match="other weights"):
        read_encoder(tmp_path / "encoder")


def test_weights_of_another_network_are_refused(small):
    for change in ({"9.weight": np.zeros((1, 2), np.float32)}, {"9.bias": np.zeros(3, np.float32)}):
        with pytest.raises(ArtifactError, match="expected"):
            Encoder("random", "small", {**small.weights, **change}, {})
    less = {name: array for name, array in small.weights.items() if name != "0.weight"}
    with pytest.raises(ArtifactError, match=r"0.weight of shape None"):
        Encoder("random", "small", less, {})
    with pytest.raises(ArtifactError, match="finite"):
        Encoder("random", "small", {**small.weights, "1.bias": np.full(32, np.nan, np.float32)}, {})


def test_what_is_no_image_is_refused(small, images):
    with pytest.raises(DatasetError, match="48 x 48 x 3"):
        small(images[:, :45])
    with pytest.raises(DatasetError, match="divide bytes by 255"):
        small(255 * images)
    with pytest.raises(DatasetError, match="nan"):
        small(np.full_like(images, np.nan))


def test_unknown_name_says_what_there_is(tmp_path):
    with pytest.raises(ConfigError, match="random-small"):
        find_encoder("resnet")
    with pytest.raises(ArtifactError, match="no encoder"):
        find_encoder(str(tmp_path))
