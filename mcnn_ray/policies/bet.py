"""Behavior Transformers (`bet`): a GPT over the last observations, a cluster of actions and an offset from its centre.

Shafiullah et al. 2022, "Behavior Transformers: Cloning k modes with one stone". Blended with memories, the offset is
`(a_memory - centre) w + L (1 - w) 2 sigma(offset / 2)`, w the memory's weight (the paper's appendix; the centre is
taken off as in its code). So the action is `w a_memory + (1 - w) (centre + L 2 sigma(offset / 2))`.

Shapes: B observations, T steps of a window, D observation numbers, A action numbers, C clusters, H width.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mcnn_ray.core.blend import sigma_beta
from mcnn_ray.core.normalise import ActionScale, Standardiser
from mcnn_ray.policies.base import Float32Array, draw, episode_generator
from mcnn_ray.policies.blended import Memories, MemoryPolicy
from mcnn_ray.policies.parameters import load_parameters, named_arrays, named_parameters

__all__ = ["BetNetwork", "BetPolicy"]

_SHAPE = ("window", "clusters", "layers", "heads", "width")
_STD = 0.02  # of GPT-2's initial weights


class BetNetwork(torch.nn.Module):
    """Logits of the clusters and an offset from each one's centre, for every step of a window of observations.

    A step sees itself and those before it, so a window that is not full is padded on the right.

    Args:
        observation_dim: D.
        action_dim: A.
        shape: `window` T, `clusters` C, `layers`, `heads` and `width` H; `dropout` for training.

    Attributes:
        centres: (C, A) float32, in [-1, 1]; zeros until they are set.
    """

    centres: torch.Tensor
    _causal: torch.Tensor

    def __init__(self, observation_dim: int, action_dim: int, shape: Mapping[str, Any]) -> None:
        super().__init__()
        window, self.clusters, width = int(shape["window"]), int(shape["clusters"]), int(shape["width"])
        dropout = float(shape.get("dropout", 0.0))
        self.embedding = torch.nn.Linear(observation_dim, width)
        self.positions = torch.nn.Embedding(window, width)
        self.dropout = torch.nn.Dropout(dropout)
        layer = torch.nn.TransformerEncoderLayer(
            width, int(shape["heads"]), 4 * width, dropout, "gelu", batch_first=True, norm_first=True
        )
        layer.dropout.p = 0.0  # between the two products of a layer, where GPT has none
        self.layers = torch.nn.TransformerEncoder(
            layer, int(shape["layers"]), torch.nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.head = torch.nn.Linear(width, self.clusters * (1 + action_dim))
        self.register_buffer("centres", torch.zeros(self.clusters, action_dim))
        causal = torch.nn.Transformer.generate_square_subsequent_mask(window)
        self.register_buffer("_causal", causal, persistent=False)
        self._start_as_gpt(len(self.layers.layers))

    def _start_as_gpt(self, layers: int) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.zeros_(parameter)
            elif parameter.dim() > 1:  # what ends in a residual sum is smaller, so that the sum does not grow
                residual = name.endswith(("out_proj.weight", "linear2.weight"))
                torch.nn.init.normal_(parameter, std=_STD / (2 * layers) ** 0.5 if residual else _STD)

    def forward(self, obs_BTD: torch.Tensor) -> torch.Tensor:
        """Return (B, T, H), for `heads`, of standardised observations; T is the window."""
        hidden_BTH = self.dropout(self.embedding(obs_BTD) + self.positions.weight)
        return self.layers(hidden_BTH, mask=self._causal, is_causal=True)  # type: ignore[no-any-return]

    def heads(self, hidden_H: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (..., C) logits and (..., C, A) offsets in action-bound units, of (..., H)."""
        output = self.head(hidden_H)
        offsets = output[..., self.clusters :].unflatten(-1, (self.clusters, -1))
        return output[..., : self.clusters], offsets


@dataclass(slots=True)
class _Episode:
    """What is remembered of an episode: its last observations, standardised, and where its draws stand."""

    observations: deque[Float32Array]
    generator: np.random.Generator


class BetPolicy(MemoryPolicy):
    """A Behavior Transformer; each action is for the newest observation, and its cluster is drawn by the logits.

    Args:
        card: origin of the policy.
        standardiser: of observations.
        action_scale: of actions.
        shape: of the network; see `BetNetwork`.
        parameters: of the network, its centres among them, by name.
        memories: the codebook, or None for the network alone.

    Raises:
        ValueError: the parameters are not of that shape.
    """

    kind = "bet"
    cone_note = (
        "L is 1 + 2 L of the member here: beside the memory stands a cluster's centre, within 1, and an offset within "
        "2 L; checked with the first observation of an episode, and the bound does not depend on those before"
    )

    def __init__(
        self,
        card: dict[str, Any],
        standardiser: Standardiser,
        action_scale: ActionScale,
        shape: Mapping[str, Any],
        parameters: Mapping[str, npt.NDArray[np.float32]],
        memories: Memories | None,
    ) -> None:
        super().__init__(card, standardiser, action_scale, memories)
        self._shape = {key: int(shape[key]) for key in _SHAPE}
        self._window = self._shape["window"]
        self._device = "cpu"
        self._network = BetNetwork(self.observation_dim, self.action_dim, self._shape)
        load_parameters(self._network, parameters)
        self._centres_CA: Float32Array = self._network.centres.numpy().copy()

    @property
    def bound(self) -> float:
        """Largest magnitude of centre and offset together, in units of the action bounds: 1 + 2 L."""
        return 1.0 + 2.0 * super().bound

    def start(self, seeds: Sequence[int]) -> list[Any]:
        """Return what is remembered of episodes that are about to begin: no observation, and a generator each."""
        return [_Episode(observations=deque(maxlen=self._window), generator=episode_generator(seed)) for seed in seeds]

    def _actions(self, obs_BD: Float32Array, state: list[Any] | None) -> Float32Array:
        episodes: list[_Episode] = self.start(range(len(obs_BD))) if state is None else state
        logits_BC, offsets_BCA = self._newest(obs_BD, episodes)
        rows_B, chosen_B = np.arange(len(obs_BD)), draw(logits_BC, [episode.generator for episode in episodes])
        offset_BA = offsets_BCA[rows_B, chosen_B]
        if self.memories is not None:
            offset_BA = (self._L * np.float32(2.0)) * sigma_beta(offset_BA * np.float32(0.5), 0.0)
        return self._blended(obs_BD, self._centres_CA[chosen_B] + offset_BA)

    def _newest(self, obs_BD: Float32Array, episodes: list[_Episode]) -> tuple[Float32Array, Float32Array]:
        """Remember the observations; return (B, C) logits and (B, C, A) offsets of these, the newest of each window."""
        # Padded to the window, so that products have one shape, and an episode's bits do not depend on its company.
        windows_BTD = np.zeros((len(obs_BD), self._window, obs_BD.shape[1]), dtype=np.float32)
        for window_TD, obs_D, episode in zip(windows_BTD, obs_BD, episodes, strict=True):
            episode.observations.append(obs_D)
            window_TD[: len(episode.observations)] = episode.observations
        newest_B = [len(episode.observations) - 1 for episode in episodes]
        with torch.inference_mode():
            hidden_BTH = self._network(torch.from_numpy(windows_BTD).to(self._device))
            logits_BC, offsets_BCA = self._network.heads(hidden_BTH[range(len(newest_B)), newest_B])
            return logits_BC.cpu().numpy(), offsets_BCA.cpu().numpy()

    def to(self, device: str) -> None:
        """Compute the network on a device of torch's from now on; clusters are drawn on the CPU."""
        super().to(device)
        self._device = device
        self._network.to(device)

    def network_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the network's parameters and centres by name."""
        return named_arrays(self._network.state_dict().items())

    def network_settings(self) -> dict[str, Any]:
        """Return the network's shape."""
        return dict(self._shape)

    @classmethod
    def from_parts(
        cls,
        card: dict[str, Any],
        standardiser: Standardiser,
        action_scale: ActionScale,
        arrays: dict[str, npt.NDArray[Any]],
        settings: dict[str, Any],
    ) -> BetPolicy:
        """Build the policy from its arrays and settings."""
        parameters, memories = named_parameters(arrays), Memories.from_parts(arrays, settings)
        return cls(card, standardiser, action_scale, settings, parameters, memories)
