"""Experts that ship with the package: one small network per Adroit task, so that demonstrations can be made offline.

They are distilled from the public experts behind D4RL's Adroit data (`mcnn_ray.data.distill`) and read from safetensors
files of the same layout, so this class also reads the public ones. Inference is plain numpy: the simulator's step is
all that costs time.

Shapes: D observation numbers, A action numbers, H hidden units.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from mcnn_ray.artifacts import check_fits_memory
from mcnn_ray.errors import ArtifactError, ConfigError, did_you_mean

__all__ = ["Expert", "expert_names"]

Float32Array = npt.NDArray[np.float32]

_ASSETS = Path(__file__).resolve().parent.parent / "assets" / "experts"
_NAMES = ("pen", "hammer", "door", "relocate")
_OBS_SCALE_FLOOR = 1e-8  # part of the public experts' formula


def expert_names() -> tuple[str, ...]:
    """Return the names that `Expert.load` takes."""
    return _NAMES


class Expert:
    """A Gaussian policy: a tanh network gives the mean, the spread is the same everywhere.

    With `net` the layers and tanh between them, the action is
    `action_scale * net((obs - obs_shift) / (obs_scale + 1e-8)) + action_shift + exp(log_std) * N(0, 1)`, then clipped
    to [-1, 1].

    Args:
        name: used in messages.
        tensors: `layers.i.weight` (H, D), `layers.i.bias` (H,), `obs_shift`, `obs_scale` (D,), `action_shift`,
            `action_scale`, `log_std` (A,); float32.
        metadata: what the file says of its origin.

    Attributes:
        name: as given.
        metadata: as given; the packaged experts state source, licence, formula and the distillation's figures.
        obs_dim: D.
        action_dim: A.
        std_A: (A,) float32 standard deviation of the noise.

    Raises:
        ArtifactError: a tensor is missing, does not fit the others, or is not finite.
    """

    def __init__(self, name: str, tensors: Mapping[str, npt.NDArray[np.floating]], metadata: Mapping[str, str]) -> None:
        self.name = name
        self.metadata = dict(metadata)
        _validate(name, tensors)
        depth = _depth(tensors)
        weights = [tensors[f"layers.{i}.weight"].astype(np.float64) for i in range(depth)]
        biases = [tensors[f"layers.{i}.bias"].astype(np.float64) for i in range(depth)]
        # Both scalings are folded into the layers, which saves a third of the small operations of a call. The shift of
        # the observation stays outside: hammer's is 230 scales, and float32 would lose that much precision in the bias.
        weights[0] /= tensors["obs_scale"].astype(np.float64) + _OBS_SCALE_FLOOR
        weights[-1] *= tensors["action_scale"][:, None]
        biases[-1] = biases[-1] * tensors["action_scale"] + tensors["action_shift"]
        self._layers = [
            (np.ascontiguousarray(weight.T, dtype=np.float32), bias.astype(np.float32))
            for weight, bias in zip(weights, biases, strict=True)
        ]
        self._obs_shift_D = tensors["obs_shift"].astype(np.float32)
        self.std_A: Float32Array = np.exp(tensors["log_std"].astype(np.float64)).astype(np.float32)
        self.obs_dim = len(self._obs_shift_D)
        self.action_dim = len(self.std_A)

    @classmethod
    def load(cls, name: str) -> Expert:
        """Load a packaged expert.

        Args:
            name: one of `expert_names()`, which is also a task's `expert`.

        Raises:
            ConfigError: there is no expert of this name; the message names the nearest.
            ArtifactError: its file is missing or damaged.
        """
        if name not in _NAMES:
            raise ConfigError(f"no packaged expert '{name}': {did_you_mean(name, _NAMES)}")
        return cls.read(_ASSETS / f"{name}.safetensors", name)

    @classmethod
    def read(cls, path: Path, name: str) -> Expert:
        """Read an expert from a safetensors file, packaged or public.

        Args:
            path: the file.
            name: used in messages.

        Raises:
            ArtifactError: the file is missing or damaged.
        """
        try:
            check_fits_memory(path.stat().st_size)
            with safe_open(path, framework="numpy") as file:
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (not a mapping)
                metadata = file.metadata() or {}
        except (OSError, SafetensorError, ValueError, TypeError) as error:
            raise ArtifactError(
                f"the {name} expert's weights {path} cannot be read ({error}); reinstall mcnn-ray, or make the file "
                f"again with: python -m mcnn_ray.data.distill --task {name}"
            ) from error
        return cls(name, tensors, metadata)

    def mean(self, obs_D: npt.NDArray[np.floating]) -> Float32Array:
        """Return the mean of the policy's Gaussian.

        Args:
            obs_D: (D,) or (B, D), any float dtype, raw units.

        Returns:
            (A,) or (B, A) float32. It may lie outside [-1, 1], since the formula clips after the noise; `act` clips.

        Raises:
            ValueError: the observation has another width than the expert's.
        """
        if obs_D.shape[-1] != self.obs_dim:
            raise ValueError(
                f"the {self.name} expert takes {self.obs_dim} observation numbers and was given an array of shape "
                f"{obs_D.shape}; use the environment of the task {self.name}-expert-v1"
            )
        hidden = (obs_D - self._obs_shift_D).astype(np.float32)
        for weight, bias in self._layers[:-1]:
            hidden = np.tanh(hidden @ weight + bias)
        weight, bias = self._layers[-1]
        action: Float32Array = hidden @ weight + bias
        return action

    def act(self, obs_D: npt.NDArray[np.floating], rng: np.random.Generator | None = None) -> Float32Array:
        """Return an action.

        Args:
            obs_D: (D,) or (B, D), any float dtype, raw units.
            rng: source of the noise, as in the stochastic expert that recorded D4RL's data; None acts without noise.

        Returns:
            (A,) or (B, A) float32 in [-1, 1].

        Raises:
            ValueError: the observation has another width than the expert's.
        """
        action = self.mean(obs_D)
        if rng is not None:
            action += self.std_A * rng.standard_normal(action.shape, dtype=np.float32)
        # np.clip costs three times as much on arrays this small.
        return np.minimum(np.maximum(action, np.float32(-1.0)), np.float32(1.0))


def _depth(tensors: Mapping[str, npt.NDArray[np.floating]]) -> int:
    return sum(key.startswith("layers.") and key.endswith(".weight") for key in tensors)


def _validate(name: str, tensors: Mapping[str, npt.NDArray[np.floating]]) -> None:
    depth = _depth(tensors)
    layers = {f"layers.{i}.{part}" for i in range(max(depth, 1)) for part in ("weight", "bias")}
    expected = layers | {"obs_shift", "obs_scale", "action_shift", "action_scale", "log_std"}
    if missing := sorted(expected - set(tensors)):
        raise ArtifactError(f"the {name} expert's file lacks {', '.join(missing)}; reinstall mcnn-ray")
    width = tensors["obs_shift"].shape[0] if tensors["obs_shift"].ndim == 1 else -1
    shapes: dict[str, tuple[int, ...]] = {"obs_shift": (width,), "obs_scale": (width,)}
    for i in range(depth):
        height = tensors[f"layers.{i}.bias"].size
        shapes |= {f"layers.{i}.weight": (height, width), f"layers.{i}.bias": (height,)}
        width = height
    shapes |= dict.fromkeys(("action_shift", "action_scale", "log_std"), (width,))
    for key, shape in shapes.items():
        if tensors[key].shape != shape:
            raise ArtifactError(
                f"the {name} expert's file is damaged: {key} has shape {tensors[key].shape} where the other tensors "
                f"need {shape}; reinstall mcnn-ray"
            )
        if not np.all(np.isfinite(tensors[key].astype(np.float64))):
            raise ArtifactError(f"the {name} expert's file is damaged: {key} is not finite; reinstall mcnn-ray")
