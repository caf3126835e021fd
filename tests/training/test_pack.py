import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mcnn_ray.core.blend import beta_at
from mcnn_ray.errors import ConfigError
from mcnn_ray.member import make_member
from mcnn_ray.policies.mlp import mlp_layers
from mcnn_ray.training.data import TrainingData
from mcnn_ray.training.pack import CHUNK_STEPS, Pack
from mcnn_ray.training.sampling import sample_rows
from tests.core.test_blend import paper_sigma
from tests.training.workers import shards, trained_together

TABLES = ("memory_actions", "distances")
KEYS = [("neural-gas", 0.1, 0, "expert", "euclidean"), ("random", 0.2, 0, "expert", "euclidean")]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def layers(pack, position):
    """Weight (in, out) and bias (out,) of each layer of a member."""
    return mlp_layers(pack.parameters(position))


def training_data(rows=400, obs=7, actions=4):
    generator = torch.Generator().manual_seed(0)

    def uniform(*shape):
        return torch.rand(*shape, generator=generator) * 2 - 1

    return TrainingData(
        obs_ND=uniform(rows, obs) * 2,
        actions_NA=uniform(rows, actions),
        memory_actions={key: uniform(rows, actions) for key in KEYS},
        distances={key: uniform(rows).abs() for key in KEYS},
    )


def member(method="mcnn+mlp", **changes):
    values = {"steps": 1000, "batch_size": 32, "hidden": (16, 16), "lambda_": 1.0}
    return make_member(method=method, **{**values, **changes})


PACK = [
    member(seed=0, lambda_=0.1),
    member("bc", seed=1),
    member(seed=2, lambda_=10.0, L=0.5, memories="random", memory_fraction=0.2),
    member("bc", seed=0),
    member(seed=0, lambda_=10.0),
]


@pytest.mark.parametrize("position", range(len(PACK)))
def test_member_trained_in_a_pack_equals_the_same_member_trained_alone(position):
    together = Pack(PACK, training_data()).train(500)
    alone = Pack([PACK[position]], training_data()).train(500)
    np.testing.assert_allclose(together[:, position], alone[:, 0], atol=1e-5, rtol=0)


def autograd_losses(one, data, steps):
    """The same training written with torch's own layers, autograd and Adam."""
    pack = Pack([one], data)
    modules = []
    for weight, bias in layers(pack, 0):
        layer = torch.nn.Linear(*weight.shape)
        layer.weight.data, layer.bias.data = torch.from_numpy(weight.T.copy()), torch.from_numpy(bias)
        modules += [layer, torch.nn.ReLU()]
    network = torch.nn.Sequential(*modules[:-1])
    optimiser = torch.optim.Adam(network.parameters(), lr=one.learning_rate)
    batches = sample_rows(torch.tensor([one.seed]), 0, steps, one.batch_size, torch.tensor([len(data.obs_ND)]))[:, 0]
    losses = []
    for step, rows in enumerate(batches, 1):
        output = network(data.obs_ND[rows])
        if one.memory_key is None:
            action = torch.tanh(output)
        else:
            weight = torch.exp(-one.lambda_ * data.distances[one.memory_key][rows])[:, None]
            memory = data.memory_actions[one.memory_key][rows]
            action = weight * memory + one.L * (1 - weight) * paper_sigma(output, beta_at(step, one.beta_schedule))
        loss = torch.nn.functional.mse_loss(action, data.actions_NA[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("position", [1, 2, 6])
def test_hand_written_gradient_trains_like_autograd(position):
    losses = Pack([MIXED[position]], training_data()).train(300)[:, 0]
    np.testing.assert_allclose(losses, autograd_losses(MIXED[position], training_data(), 300), atol=2e-5, rtol=0)


MIXED = [
    *PACK,
    member("bc", seed=3, learning_rate=1e-3),
    member(seed=4, lambda_=1.0, beta_schedule="official-code"),
    member(seed=5, lambda_=0.3, learning_rate=3e-3),
]


def test_members_stepping_at_once_train_as_they_do_in_turns(monkeypatch):
    """The way of a GPU, on a CPU: heads and learning rates side by side in one stack."""
    in_turns = Pack(MIXED, training_data()).train(300)
    monkeypatch.setattr(Pack, "_members_at_once", lambda pack: len(pack.members))
    at_once = Pack(MIXED, training_data())
    np.testing.assert_allclose(at_once.train(300), in_turns, atol=2e-5, rtol=0)
    assert len(at_once._steppers) == 1


class Elsewhere(TorchDispatchMode):
    """Collects operations that touch a tensor on another device, or bring a value to the host."""

    def __init__(self, device):
        super().__init__()
        self.device, self.found = device, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        touched = [one for one in tree_leaves((args, kwargs, result)) if isinstance(one, torch.Tensor)]
        if torch.Tag.data_dependent_output in func.tags or any(one.device != self.device for one in touched):
            self.found.append(str(func))
        return result


def on_meta(data):
    """The shapes of the data alone, on a device that holds no numbers and that no other may mix with."""
    tables = {name: {key: one.to("meta") for key, one in getattr(data, name).items()} for name in TABLES}
    return TrainingData(obs_ND=data.obs_ND.to("meta"), actions_NA=data.actions_NA.to("meta"), **tables)


def test_steps_that_a_gpu_repeats_touch_nothing_on_the_host():
    """A CUDA graph records only what runs on the device."""
    pack = Pack(PACK, on_meta(training_data()))
    (stepper,) = pack._steppers
    with torch.inference_mode(), Elsewhere(torch.device("meta")) as elsewhere:
        losses_SG = stepper.take(CHUNK_STEPS, CHUNK_STEPS)
    assert losses_SG.shape == (CHUNK_STEPS, len(PACK))
    assert elsewhere.found == []


@pytest.mark.parametrize("at_once", [False, True])
def test_those_kept_train_on_as_if_the_others_had_never_been(monkeypatch, at_once):
    if at_once:
        monkeypatch.setattr(Pack, "_members_at_once", lambda pack: len(pack.members))
    pack, stay = Pack(MIXED, training_data()), [1, 2, 6]
    others = Pack([MIXED[i] for i in stay], training_data())
    others.train(150)
    pack.train(150)
    pack.keep(stay)
    np.testing.assert_allclose(pack.train(150), others.train(150), atol=2e-5, rtol=0)
    assert pack.members == [MIXED[i] for i in stay]
    assert pack.state()["parameters"].shape[0] == 3


def test_members_of_different_demonstrations_train_together_as_alone():
    small, large = training_data(rows=100), training_data(rows=400)
    members = [member(seed=0, demonstrations=2), member(seed=0), member("bc", seed=1, demonstrations=2)]
    together = Pack(members, {members[0].data_key: small, members[1].data_key: large, members[2].data_key: small})
    together = together.train(200)
    for position, data in enumerate((small, large, small)):
        alone = Pack([members[position]], {members[position].data_key: data}).train(200)
        np.testing.assert_array_equal(together[:, position], alone[:, 0])


@pytest.mark.parametrize("workers", [2, 3])
def test_shards_of_a_batch_add_up_to_the_whole(workers):
    found = trained_together([Pack(PACK[:2], training_data(), shard) for shard in shards(workers)], 150)
    whole = Pack(PACK[:2], training_data()).train(150)
    for losses in found:
        np.testing.assert_allclose(losses, whole, atol=2e-5, rtol=0)


def test_training_cut_anywhere_is_the_same():
    whole = Pack(PACK, training_data()).train(250)
    pack = Pack(PACK, training_data())
    np.testing.assert_array_equal(np.concatenate([pack.train(steps) for steps in (1, 98, 3, 148)]), whole)


def test_training_lowers_the_loss_of_every_member():
    data = training_data()
    data.actions_NA = torch.tanh(data.obs_ND[:, :4])
    losses = Pack([member("bc", learning_rate=3e-3), member(lambda_=10.0, learning_rate=3e-3)], data).train(1000)
    assert (losses[-50:].mean(0) < 0.3 * losses[:50].mean(0)).all()


def test_members_of_one_setting_differ_by_seed_and_repeat_with_it():
    first = Pack([member(seed=0), member(seed=1), member(seed=0)], training_data()).train(100)
    np.testing.assert_array_equal(first[:, 0], first[:, 2])
    assert not np.array_equal(first[:, 0], first[:, 1])


def test_resumed_pack_continues_bit_for_bit():
    whole = Pack(PACK, training_data())
    expected = whole.train(4 * CHUNK_STEPS)
    half = Pack(PACK, training_data())
    half.train(2 * CHUNK_STEPS)
    resumed = Pack(PACK, training_data())
    resumed.load_state(half.state())
    np.testing.assert_array_equal(resumed.train(2 * CHUNK_STEPS), expected[2 * CHUNK_STEPS :])
    for position in range(len(PACK)):
        for (w, b), (w2, b2) in zip(layers(whole, position), layers(resumed, position), strict=True):
            np.testing.assert_array_equal(w, w2)
            np.testing.assert_array_equal(b, b2)


def test_member_at_lambda_zero_gets_no_gradient():
    """All weight is the memory's, so the network cannot matter."""
    pack = Pack([member(lambda_=0.0)], training_data())
    before = layers(pack, 0)
    pack.train(50)
    for (w, b), (w2, b2) in zip(before, layers(pack, 0), strict=True):
        np.testing.assert_array_equal(w, w2)
        np.testing.assert_array_equal(b, b2)


def test_packs_that_cannot_train_are_refused():
    with pytest.raises(ConfigError, match="batch size 500 is larger than the 400"):
        Pack([member(batch_size=500)], training_data())
    with pytest.raises(ConfigError, match="members of one shape"):
        Pack([member(), member(hidden=(8,))], training_data())
    with pytest.raises(ConfigError, match="1nn is not trained"):
        Pack([make_member(method="1nn", steps=1)], training_data())
