"""Embeddings of demonstrations: computed once, by content."""

from dataclasses import replace

import numpy as np
import pytest

from mcnn_ray.encoders.embeddings import cached_embeddings, embed
from mcnn_ray.encoders.encoder import Encoder, random_encoder
from mcnn_ray.errors import DatasetError
from tests.environments import glance_demonstrations


class Counting(Encoder):
    """Counts the images that it embeds."""

    count = 0

    def __call__(self, images_BX):
        self.count += len(images_BX)
        return super().__call__(images_BX)


@pytest.fixture
def encoder():
    small = random_encoder("small")
    return Counting(small.source, small.architecture, small.weights, small.facts)


@pytest.fixture(scope="module")
def demonstrations():
    shown = glance_demonstrations()
    return replace(shown, final_observations_ED=shown.observations_ND[5::6])


def test_embeddings_stand_in_the_images_place(demonstrations, encoder):
    seen = embed(demonstrations, encoder)
    np.testing.assert_array_equal(
        seen.observations_ND[:64], random_encoder("small")(demonstrations.observations_ND[:64])
    )
    assert seen.observations_ND.shape == (72, 512)
    assert seen.final_observations_ED.shape == (12, 512)
    np.testing.assert_array_equal(seen.actions_NA, demonstrations.actions_NA)
    assert seen.provenance["encoder"] == encoder.description()


def test_second_time_nothing_is_computed(demonstrations, encoder, tmp_path):
    first = cached_embeddings(demonstrations, encoder, tmp_path)
    assert encoder.count == 72 + 12
    second = cached_embeddings(demonstrations, encoder, tmp_path)
    assert encoder.count == 72 + 12
    np.testing.assert_array_equal(second.observations_ND, first.observations_ND)
    np.testing.assert_array_equal(second.final_observations_ED, first.final_observations_ED)
    assert second.sha256 == first.sha256


def test_other_images_or_weights_have_entries_of_their_own(demonstrations, encoder, tmp_path):
    cached_embeddings(demonstrations, encoder, tmp_path)
    cached_embeddings(replace(demonstrations, observations_ND=1 - demonstrations.observations_ND), encoder, tmp_path)
    without = replace(demonstrations, final_observations_ED=None)
    assert cached_embeddings(without, encoder, tmp_path).final_observations_ED is None
    assert encoder.count == 84 + 84 + 72
    other = cached_embeddings(demonstrations, random_encoder("small", seed=1), tmp_path)
    assert not np.array_equal(other.observations_ND, embed(demonstrations, encoder).observations_ND)
    assert other.sha256 != embed(demonstrations, encoder).sha256


def test_damaged_entry_is_computed_again(demonstrations, encoder, tmp_path):
    expected = cached_embeddings(demonstrations, encoder, tmp_path).observations_ND
    (file,) = tmp_path.glob("*/embeddings.safetensors")
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    np.testing.assert_array_equal(cached_embeddings(demonstrations, encoder, tmp_path).observations_ND, expected)
    assert encoder.count == 2 * 84
    cached_embeddings(demonstrations, encoder, tmp_path)
    assert encoder.count == 2 * 84


def test_hash_does_not_hang_on_how_a_machine_rounds(demonstrations, encoder):
    seen = embed(demonstrations, encoder)
    assert replace(seen, observations_ND=seen.observations_ND * np.float32(1 + 1e-6)).sha256 == seen.sha256
    assert seen.subset(5).sha256 != seen.sha256
    assert seen.sha256 != demonstrations.sha256


def test_fault_names_the_demonstrations(demonstrations, encoder):
    with pytest.raises(DatasetError, match=r"glances: .* divide bytes by 255"):
        embed(replace(demonstrations, observations_ND=255 * demonstrations.observations_ND), encoder)
