"""Stacked MLPs of any widths: outputs and gradients are autograd's, and their memory holds nothing but parameters."""

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from mcnn_ray.training.networks import StackedMlp, beside_one

widths = st.lists(st.integers(1, 20), min_size=2, max_size=4)


def layers_of(mlp, flat_F):
    """Weight (in, out) and bias (out,) of each layer, that gradients come back to."""
    arrays = mlp.by_name(flat_F)
    names = range(len(arrays) // 2)
    return [[torch.tensor(arrays[f"layers.{i}.{of}"], requires_grad=True) for of in ("weight", "bias")] for i in names]


def outputs_of(layers, inputs_BD):
    *hidden, (weight, bias) = layers
    for hidden_weight, hidden_bias in hidden:
        inputs_BD = torch.relu(inputs_BD @ hidden_weight + hidden_bias)
    return inputs_BD @ weight + bias


@given(widths, st.integers(1, 3), st.integers(1, 9), st.integers(0, 2**31))
def test_outputs_and_gradients_are_those_of_autograd(widths, group, batch, seed):
    generator = torch.Generator().manual_seed(seed)
    mlp = StackedMlp(widths, group, batch, torch.device("cpu"))
    parameters_GF = torch.stack([mlp.initial(seed + member) for member in range(group)])
    inputs_GBI = beside_one(group, batch, widths[0], device=torch.device("cpu"))
    inputs_GBI[..., :-1] = torch.randn(group, batch, widths[0], generator=generator)
    gradient_GBA = torch.randn(group, batch, widths[-1], generator=generator)
    views = mlp.views(parameters_GF)
    with torch.inference_mode():
        for _ in range(2):  # buffers are used again
            mlp.forward(views, inputs_GBI)
            mlp.backward(views, gradient_GBA)
    for member in range(group):
        layers = layers_of(mlp, parameters_GF[member])
        outputs_BA = outputs_of(layers, inputs_GBI[member, :, :-1])
        torch.testing.assert_close(mlp.output_GBA[member], outputs_BA, atol=1e-5, rtol=1e-5)
        outputs_BA.backward(gradient_GBA[member])
        written = mlp.by_name(mlp.gradients_GF[member])
        for i, (weight, bias) in enumerate(layers):
            for name, parameter in (("weight", weight), ("bias", bias)):
                found = torch.tensor(written[f"layers.{i}.{name}"])
                torch.testing.assert_close(found, parameter.grad, atol=1e-4, rtol=1e-4)


@given(widths, st.integers(0, 2**31))
def test_padding_stays_zero(widths, seed):
    """Adam leaves a number whose gradient is 0 where it is."""
    mlp = StackedMlp(widths, 1, 5, torch.device("cpu"))
    parameters_1F = mlp.initial(seed)[None]
    inputs_1BI = beside_one(1, 5, widths[0], device=torch.device("cpu"))
    inputs_1BI[..., :-1] = torch.randn(1, 5, widths[0], generator=torch.Generator().manual_seed(seed))
    mlp.forward(mlp.views(parameters_1F), inputs_1BI)
    mlp.backward(mlp.views(parameters_1F), torch.ones(1, 5, widths[-1]))
    numbers = sum((fan_in + 1) * fan_out for fan_in, fan_out in itertools.pairwise(widths))
    marked_1F = torch.zeros(1, mlp.size)
    for layer in mlp.views(marked_1F):
        layer.weight.fill_(1.0)
    assert int(marked_1F.sum()) == numbers
    assert not parameters_1F[marked_1F == 0.0].any()
    assert not mlp.gradients_GF[marked_1F == 0.0].any()
