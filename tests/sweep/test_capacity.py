import numpy as np
import pytest

from mcnn_ray.config import SweepConfig
from mcnn_ray.errors import ConfigError
from mcnn_ray.sweep.capacity import Capacity, pack_bytes, split_by_memory, worthwhile_packs
from mcnn_ray.sweep.studies import open_studies
from mcnn_ray.training.data import make_training_data
from mcnn_ray.training.pack import Pack


@pytest.fixture(scope="module")
def config(pen_dataset):
    values = {"task": "pen-expert-v1", "dataset": pen_dataset, "method": ["mcnn+mlp", "bc"], "seed": list(range(5))}
    return SweepConfig.parse({**values, "memories": "random"}, "test")


def test_bytes_counted_are_those_of_the_tensors(config, tmp_path):
    studies, members = open_studies(config), config.members()
    studies.learn_codebooks(members, tmp_path)
    (study,) = studies.parts.values()
    shared, each = pack_bytes(members, studies)
    key = members[0].memory_key
    data = make_training_data(study.obs_ND, study.units, {key: study.nearest_memories(key)})
    tables = [data.obs_ND, data.actions_NA, *data.memory_actions.values(), *data.distances.values()]
    assert shared == sum(tensor.nbytes for tensor in tables)

    (stepper,) = Pack(members[:1], data)._steppers
    held = {**storages_of(stepper._network), **storages_of(stepper._tables._buffers)}
    states = 3 * stepper._network.gradients_GF.nbytes  # parameters and Adam's moments
    assert each == pytest.approx(states + sum(held.values()), rel=0.02)


def storages_of(owner):
    """Bytes of all that an object's tensors lie in, by where that is: padding counts, and views count once."""
    import torch

    values = [value for kept in vars(owner).values() for value in (kept if isinstance(kept, list) else [kept])]
    storages = [value.untyped_storage() for value in values if isinstance(value, torch.Tensor)]
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


def test_packs_are_split_so_that_each_fits_and_refused_when_none_does(config):
    studies, members = open_studies(config), config.members()
    shared, each = pack_bytes(members, studies)

    def packs(free_bytes, at_once=2):
        return split_by_memory(
            members, studies, Capacity(packs_at_once=at_once, snapshot_actors=0, free_bytes=int(free_bytes))
        )

    assert packs(shared + 100 * each) == 2
    assert packs(shared + 3.5 * each) == int(np.ceil(10 / 3))
    assert packs(shared + 1.5 * each) == 10
    with pytest.raises(ConfigError, match=r"does not fit into memory: its tables take .* GiB"):
        packs(shared + 0.5 * each)


def test_few_steps_are_not_spread_over_processes_that_take_longer_to_start(config):
    studies = open_studies(config)

    def packs(steps):
        return worthwhile_packs(config.model_copy(update={"steps": steps}).members(), studies)

    assert packs(10) == 1
    assert 2 < packs(10_000) < packs(20_000) <= 2 * packs(10_000)


def test_memory_of_a_network_of_ones_own_is_counted_from_the_network(config):
    """`tests.backbones.Deep` is the MLP of widths 16, 16; its outputs before ReLU and its own as a whole count too."""
    studies = open_studies(config)
    mlp = config.model_copy(update={"hidden": (16, 16)}).members()
    module = config.model_copy(update={"hidden": (999,), "backbone": "tests.backbones.Deep"}).members()
    (_, own), (_, built_in) = pack_bytes(module, studies), pack_bytes(mlp, studies)
    assert own - built_in == 4 * 2 * module[0].batch_size * (16 + 16 + 24)
