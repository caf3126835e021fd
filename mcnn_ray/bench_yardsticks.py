"""What training is measured against: its matrix products alone, a copy in memory, an eager loop.

Shapes: P members, N rows, B batch, D observation numbers, A action numbers.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mcnn_ray.core.blend import beta_at
from mcnn_ray.training.step_shape import StepShape

__all__ = ["EagerLoop", "ProductTimer", "Readings", "Yardsticks", "made_buffer"]

Float32Array = npt.NDArray[np.float32]
_BLOCKS = 5  # timed at each reading, in turn for each library
_PASSES = 20  # of one block
_EAGER_STEPS = 50  # at each reading
_COPIED_BYTES = 1 << 27  # far larger than any cache
_LEARNING_RATE = 3e-4


def made_buffer(shape: StepShape, rows: int, seed: int) -> dict[str, Float32Array]:
    """Make a replay buffer like that of the code published with the paper: nine arrays of N rows.

    Observations are standard normal; memories are other points near them; actions are uniform in [-1, 1].
    """
    rng = np.random.default_rng(seed)

    def normal() -> Float32Array:
        return rng.standard_normal((rows, shape.dim), dtype=np.float32)

    def uniform() -> Float32Array:
        return rng.random((rows, shape.actions), dtype=np.float32) * 2 - 1

    obs_ND, zero_N1 = normal(), np.zeros((rows, 1), dtype=np.float32)
    return {
        "observations": obs_ND,
        "actions": uniform(),
        "next_observations": np.roll(obs_ND, -1, axis=0),
        "terminals": zero_N1,
        "rewards": zero_N1.copy(),
        "mem_observations": obs_ND + np.float32(0.3) * normal(),
        "mem_actions": uniform(),
        "mem_next_observations": normal(),
        "mem_rewards": zero_N1.copy(),
    }


class ProductTimer:
    """Times the matrix products of one gradient step, at its shapes and layouts and into the buffers that it reuses.

    Args:
        shape: of the step.
        members: P, stacked; 1 on a CPU, where members take turns.
        device: `cpu` or `cuda`.
    """

    def __init__(self, shape: StepShape, members: int, device: str) -> None:
        self._device = device
        products = _step_products(shape, members, device)
        self._passes: dict[str, Callable[[], None]] = {}
        if device == "cpu":
            matrices = [(left[0], right[0], out[0]) for left, right, out in products]
            arrays = [(left.numpy(), right.numpy(), out.numpy()) for left, right, out in matrices]
            self._passes["numpy"] = lambda: _repeat(np.dot, arrays)
            self._passes["torch"] = lambda: _repeat(torch.mm, matrices)
        else:
            # Replayed as a graph, as training is: launching products this small one by one takes longer than they do.
            _repeat(torch.bmm, products)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                _repeat(torch.bmm, products)
            self._passes["torch"] = graph.replay
        for run in self._passes.values():
            run()

    def read(self) -> dict[str, list[float]]:
        """Return the seconds of all products of one step of all members, several times, for each library."""
        taken: dict[str, list[float]] = {library: [] for library in self._passes}
        for _ in range(_BLOCKS):
            for library, run in self._passes.items():
                started = time.perf_counter()
                run()
                _synchronise(self._device)
                taken[library].append((time.perf_counter() - started) / _PASSES)
        return taken


def _repeat(product: Callable[..., object], operands: Sequence[tuple[Any, Any, Any]]) -> None:
    for _ in range(_PASSES):
        for left, right, out in operands:
            product(left, right, out=out)


def _step_products(
    shape: StepShape, members: int, device: str
) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Return (left, right, out) of every product of a step, each (P, rows, columns), in the step's order."""
    generator = torch.Generator(device).manual_seed(0)

    def stacked(rows: int, columns: int) -> torch.Tensor:
        # Scaled so that products of products neither vanish nor overflow, which would change their speed.
        return torch.randn(members, rows, columns, generator=generator, device=device).mul_(columns**-0.5)

    batch = shape.batch_size
    weights = [stacked(fan_in, fan_out) for fan_in, fan_out in shape.layers]
    weight_gradients = [torch.empty_like(weight) for weight in weights]
    values = [stacked(batch, shape.dim), *(stacked(batch, fan_out) for _, fan_out in shape.layers)]
    gradients = [torch.empty_like(value) for value in values[:-1]] + [stacked(batch, shape.actions)]
    products = [(values[i], weight, values[i + 1]) for i, weight in enumerate(weights)]
    for i in reversed(range(len(weights))):
        products.append((values[i].mT, gradients[i + 1], weight_gradients[i]))
        if i > 0:
            products.append((gradients[i + 1], weights[i].mT, gradients[i]))
    return products


class EagerLoop:
    """Trains one member as the code published with the paper does.

    Rows are drawn by numpy on the host, all nine arrays of the buffer are copied by `torch.tensor` at each step though
    four are used, autograd, torch's default Adam, and the loss is read back by `.item()` at each step.

    Args:
        shape: of the step.
        buffer: of `made_buffer`.
        device: `cpu` or `cuda`.
        seed: of initialisation and batches.
    """

    def __init__(self, shape: StepShape, buffer: dict[str, Float32Array], device: str, seed: int) -> None:
        self._buffer, self._device, self._batch_size = buffer, device, shape.batch_size
        self._rng = np.random.default_rng(seed)
        torch.manual_seed(seed)
        layers: list[torch.nn.Module] = []
        for fan_in, fan_out in shape.layers:
            layers += [torch.nn.Linear(fan_in, fan_out), torch.nn.ReLU()]
        self._network = torch.nn.Sequential(*layers[:-1]).to(device)
        self._optimiser = torch.optim.Adam(self._network.parameters(), lr=_LEARNING_RATE)
        self._step = 0

    def seconds(self, steps: int) -> float:
        """Take steps and return how long they took."""
        started = time.perf_counter()
        for _ in range(steps):
            self.take()
        return time.perf_counter() - started

    def take(self) -> float:
        """Take a step and return its loss before it."""
        rows_B = self._rng.integers(len(self._buffer["observations"]), size=self._batch_size)
        batch = {name: torch.tensor(array[rows_B]).to(self._device) for name, array in self._buffer.items()}
        self._step += 1
        beta = beta_at(self._step, "official-code")
        output_BA = self._network(batch["observations"])
        half_BA = (output_BA + 1) / 2
        leaky_BA = torch.nn.functional.leaky_relu(half_BA, beta)
        squashed_BA = 2 * (leaky_BA - (1 - beta) * torch.relu(half_BA - 1)) - 1
        distance_B1 = torch.linalg.norm(batch["observations"] - batch["mem_observations"], dim=1, keepdim=True)
        weight_B1 = torch.exp(-distance_B1)
        action_BA = batch["mem_actions"] * weight_B1 + (1 - weight_B1) * squashed_BA
        loss = torch.nn.functional.mse_loss(action_BA, batch["actions"])
        self._optimiser.zero_grad()
        loss.backward()
        self._optimiser.step()
        return loss.item()


@dataclass(slots=True, kw_only=True)
class Readings:
    """What the yardsticks showed.

    Attributes:
        bytes_per_s: read and written by a copy.
        product_seconds: of all products of one step of all members, for each library.
        eager_seconds: of one step of the eager loop.
    """

    bytes_per_s: float
    product_seconds: dict[str, list[float]] = field(default_factory=dict)
    eager_seconds: list[float] = field(default_factory=list)

    @property
    def products(self) -> tuple[str, float]:
        """The library whose median is least, and that."""
        medians = {library: statistics.median(taken) for library, taken in self.product_seconds.items()}
        return min(medians.items(), key=lambda item: item[1])

    @property
    def eager_steps_per_s(self) -> float:
        """The median."""
        return 1.0 / statistics.median(self.eager_seconds)


class Yardsticks:
    """Everything that training is measured against, to be read between its parts.

    Args:
        shape: of the step.
        members: P, that step at once.
        buffer: of `made_buffer`.
        device: `cpu` or `cuda`.
        seed: of the eager loop.

    Attributes:
        readings: so far.
    """

    def __init__(self, shape: StepShape, members: int, buffer: dict[str, Float32Array], device: str, seed: int) -> None:
        self._products = ProductTimer(shape, members, device)
        self._eager = EagerLoop(shape, buffer, device, seed)
        self._eager.seconds(_EAGER_STEPS)
        self.readings = Readings(bytes_per_s=_copied_bytes_per_s(device))

    def read(self) -> None:
        """Time products and eager loop once more."""
        for library, taken in self._products.read().items():
            self.readings.product_seconds.setdefault(library, []).extend(taken)
        self.readings.eager_seconds.append(self._eager.seconds(_EAGER_STEPS) / _EAGER_STEPS)


def _copied_bytes_per_s(device: str) -> float:
    """Return the bytes a second, read and written, of copying what no cache holds."""
    source = torch.zeros(_COPIED_BYTES // 4, device=device)
    target = torch.empty_like(source)
    taken = []
    for _ in range(5):
        _synchronise(device)
        started = time.perf_counter()
        target.copy_(source)
        _synchronise(device)
        taken.append(time.perf_counter() - started)
    return 2 * _COPIED_BYTES / statistics.median(taken[1:])


def _synchronise(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()
