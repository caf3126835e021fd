"""Networks of users' own: they train as the MLP does, alone as in a pack, and what cannot train is refused."""

import numpy as np
import pytest
import torch

from mcnn_ray.errors import ConfigError
from mcnn_ray.training.module_network import StackedModule, check_backbone
from mcnn_ray.training.networks import StackedMlp
from mcnn_ray.training.pack import Pack
from tests.training.test_pack import member, one_thread, training_data  # noqa: F401  # a fixture for all tests here

DEEP, RESIDUAL = "tests.backbones.Deep", "tests.backbones.Residual"


def own(method="mcnn+mlp", backbone=RESIDUAL, **changes):
    return member(method, backbone=backbone, **changes)


PACK = [own(seed=0, lambda_=0.1), own("bc", seed=1), own(seed=2, lambda_=10.0, L=0.5), own("bc", learning_rate=3e-3)]


def as_mlp(arrays):
    """The MLP's flat parameters that equal those of a `Deep`."""
    mlp = StackedMlp((7, 16, 16, 4), 1, 1, torch.device("cpu"))
    flat_1F = torch.zeros(1, mlp.size)
    for layer, place in zip(mlp.views(flat_1F), (0, 2, 4), strict=True):
        layer.weight[0, :-1] = torch.from_numpy(arrays[f"{place}.weight"]).T
        layer.weight[0, -1] = torch.from_numpy(arrays[f"{place}.bias"])
    return flat_1F.numpy()


@pytest.mark.parametrize(("method", "L"), [("bc", 1.0), ("mcnn+mlp", 0.5)])
def test_module_equal_to_the_mlp_trains_to_the_same_losses(method, L):
    module = Pack([own(method, DEEP, L=L)], training_data())
    mlp = Pack([member(method, L=L)], training_data())
    mlp.load_state({**mlp.state(), "parameters": as_mlp(module.parameters(0))})
    np.testing.assert_allclose(module.train(300), mlp.train(300), atol=2e-5, rtol=0)
    np.testing.assert_allclose(as_mlp(module.parameters(0)), mlp.state()["parameters"], atol=1e-4, rtol=0)


def test_member_with_a_module_trains_alone_as_in_a_pack():
    together = Pack(PACK, training_data()).train(120)
    for position, one in enumerate(PACK):
        alone = Pack([one], training_data()).train(120)
        np.testing.assert_array_equal(together[:, position], alone[:, 0])


def test_members_with_modules_stepping_at_once_train_as_they_do_in_turns(monkeypatch):
    """The way of a GPU, on a CPU."""
    in_turns = Pack(PACK, training_data()).train(120)
    monkeypatch.setattr(Pack, "_members_at_once", lambda pack: len(pack.members))
    np.testing.assert_allclose(Pack(PACK, training_data()).train(120), in_turns, atol=2e-5, rtol=0)


@pytest.mark.parametrize("backbone", [DEEP, RESIDUAL, "torch.nn.Linear"])
def test_three_stacked_give_the_outputs_and_gradients_of_each_alone(backbone):
    generator, cpu = torch.Generator().manual_seed(0), torch.device("cpu")
    three, one = (StackedModule(backbone, 7, 4, group, 32, cpu) for group in (3, 1))
    inputs_GBI, gradient_GBA = torch.randn(3, 32, 8, generator=generator), torch.randn(3, 32, 4, generator=generator)
    parameters_GF = torch.stack([three.initial(seed) for seed in range(3)])
    written = three.output_GBA.data_ptr(), three.gradients_GF.data_ptr()
    views = three.views(parameters_GF)
    three.forward(views, inputs_GBI)
    three.backward(views, gradient_GBA)
    assert written == (three.output_GBA.data_ptr(), three.gradients_GF.data_ptr())
    for i in range(3):
        views = one.views(parameters_GF[i : i + 1])
        one.forward(views, inputs_GBI[i : i + 1])
        one.backward(views, gradient_GBA[i : i + 1])
        torch.testing.assert_close(three.output_GBA[i], one.output_GBA[0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(three.gradients_GF[i], one.gradients_GF[0], atol=1e-4, rtol=1e-4)


def test_seed_gives_the_parameters_that_torch_would_draw_and_no_other_random_numbers_change():
    before = torch.get_rng_state()
    network = StackedModule(DEEP, 7, 4, 1, 1, torch.device("cpu"))
    found = network.by_name(network.initial(5))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(5)
    torch.testing.assert_close(torch.from_numpy(found["0.weight"]), torch.nn.Linear(7, 16).weight.data)
    assert not np.array_equal(found["0.weight"], network.by_name(network.initial(6))["0.weight"])


def test_resumed_module_continues_bit_for_bit():
    whole, half, resumed = (Pack(PACK, training_data()) for _ in range(3))
    expected = whole.train(120)
    half.train(60)
    resumed.load_state(half.state())
    np.testing.assert_array_equal(resumed.train(60), expected[60:])
    for key, array in whole.parameters(2).items():
        np.testing.assert_array_equal(resumed.parameters(2)[key], array)


def test_training_lowers_the_loss_and_leaves_fixed_parameters_alone():
    data = training_data()
    data.actions_NA = torch.tanh(data.obs_ND[:, :4])
    pack = Pack([own("bc", learning_rate=3e-3)], data)
    before = pack.parameters(0)
    losses = pack.train(400)
    after = pack.parameters(0)
    assert losses[-50:].mean() < 0.3 * losses[:50].mean()
    unchanged = {key for key in before if np.array_equal(before[key], after[key])}
    assert unchanged == {"features"}
    assert after["gain"].shape == ()


def test_members_of_different_networks_are_no_pack():
    with pytest.raises(ConfigError, match="members of one shape, got 2"):
        Pack([own(backbone=DEEP), own(backbone=RESIDUAL)], training_data())


@pytest.mark.parametrize("backbone", [DEEP, RESIDUAL, "torch.nn.Linear"])
def test_sound_networks_are_accepted(backbone):
    check_backbone(backbone, 7, 4)


REFUSED = {
    "Deep": "backbone 'Deep' does not name a class; write module.Class",
    "no_such.Deep": r"no_such cannot be imported \(ModuleNotFoundError: No module named 'no_such'\); run mcnn in",
    "tests.backbones.Deeep": "tests.backbones has no 'Deeep'; did you mean 'Deep'",
    "tests.backbones.function": "is no torch.nn.Module class but <function function",
    "tests.backbones.OneNumber": r"cannot be made as OneNumber\(7, 4\): TypeError.*its constructor takes the number of",
    "tests.backbones.Broken": r"cannot be made as Broken\(7, 4\): RuntimeError: no weights; its constructor",
    "tests.backbones.Normalised": r"buffers \(1.running_mean, .*use torch.nn.LayerNorm instead of batch",
    "tests.backbones.WrongWay": r"fails on observations of shape \(1, 7\): RuntimeError",
    "tests.backbones.Squeezed": r"outputs of shape \(4,\) for observations of shape \(1, 7\); expected \(1, 4\)",
    "tests.backbones.Pair": "gives tuple; it must give one torch.float32 tensor",
    "tests.backbones.Double": "gives torch.float64; it must give one torch.float32 tensor",
    "tests.backbones.Half": "its parameter weight is torch.float64; use torch.float32",
    "tests.backbones.Unlearned": "no parameters to train; assign its layers to attributes",
    "tests.backbones.Branching": "cannot be trained through torch.func .*without branches on values",
    "tests.backbones.Noisy": "cannot be trained through torch.func .*as torch.nn.Dropout",
    "tests.backbones.Detached": "has outputs without a gradient; leave out detach",
    "tests.backbones.Hidden": "made twice with the same parameters gives different outputs",
    "tests.backbones.Mixing": "another output when others are in its batch",
}


@pytest.mark.parametrize("backbone", REFUSED)
def test_networks_that_cannot_train_are_refused_in_a_sentence(backbone):
    with pytest.raises(ConfigError, match=REFUSED[backbone]) as refusal:
        check_backbone(backbone, 7, 4)
    assert backbone in str(refusal.value)
    assert "\n" not in str(refusal.value)
