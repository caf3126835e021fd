"""Diffusion policies (`diff`): a chunk of actions, made out of noise step by step, of which the first are executed.

Wang et al. 2023 and Chi et al. 2023, see `mcnn_ray.diffusion_options`. Blended with memories, the actions that the
network tells in every denoising step are `w a_memory + L (1 - w) clip(network)`: w is the weight of the newest
observation's nearest memory, a_memory the chunk demonstrated around it, and both are the same in all steps. The last
step gives these actions themselves, so they lie in the memory's cone, and at a memory are the demonstrated ones.

Shapes: B observations, T observed steps, P actions of a chunk, S denoising steps, M memories, D observation numbers, A
action numbers, H numbers that stand for a denoising step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mcnn_ray.core.blend import blend
from mcnn_ray.core.normalise import ActionScale, Standardiser
from mcnn_ray.diffusion_options import DIFFUSION_OPTIONS, check_diffusion
from mcnn_ray.errors import ConfigError
from mcnn_ray.options import read_options
from mcnn_ray.policies.base import Float32Array, episode_generator
from mcnn_ray.policies.blended import Memories, MemoryPolicy
from mcnn_ray.policies.denoisers import make_denoiser
from mcnn_ray.policies.parameters import load_parameters, named_arrays, named_parameters

__all__ = ["DiffusionPolicy"]

_SETTINGS = (
    *("network", "width", "time_width", "observed", "predicted", "executed"),
    *("prediction", "denoising_steps", "inference_steps"),
)


@dataclass(slots=True)
class _Episode:
    """What is remembered of an episode: its last observations, standardised, its actions to come, and its noise."""

    observations: deque[Float32Array]
    generator: torch.Generator
    planned: deque[Float32Array] = field(default_factory=deque)


class DiffusionPolicy(MemoryPolicy):
    """A diffusion policy; where an episode has no actions left, it makes a chunk of them for the newest observation.

    Args:
        card: origin of the policy.
        standardiser: of observations.
        action_scale: of actions.
        options: of its member; see `mcnn_ray.diffusion_options`.
        parameters: of the network, its table among them, by name.
        memories: the codebook, or None for the network alone.
        chunks_MPA: raw actions around each memory, whose own are at the newest observed step; None where a chunk is one
            action.

    Raises:
        ValueError: an option cannot be, or parameters or chunks are not of these options.
    """

    kind = "diffusion"
    cone_note = (
        "where a chunk is several actions, the first executed one is checked; all is with the first observation of an "
        "episode and one draw of noise, and the bound depends on neither"
    )

    def __init__(
        self,
        card: dict[str, Any],
        standardiser: Standardiser,
        action_scale: ActionScale,
        options: Mapping[str, Any],
        parameters: Mapping[str, npt.NDArray[np.float32]],
        memories: Memories | None,
        chunks_MPA: npt.NDArray[np.float32] | None = None,
    ) -> None:
        super().__init__(card, standardiser, action_scale, memories)
        self._settings = _read_settings(options)
        self._observed, self._length = self._settings["observed"], self._settings["predicted"]
        self._executed = slice(self._observed - 1, self._observed - 1 + self._settings["executed"])
        self._device = "cpu"
        self._network = make_denoiser(self.observation_dim, self.action_dim, self._settings)
        load_parameters(self._network, parameters)
        self._table_S6 = self._network.table.numpy().copy()
        if self._table_S6[0, 0] != self._settings["denoising_steps"] - 1:
            raise ValueError(
                f"the noise schedule begins at step {self._table_S6[0, 0]:g}, which is not the last of the network's "
                f"{self._settings['denoising_steps']} denoising_steps"
            )
        self._time_S1H = self._network.time(self._network.table[:, 0])[:, None]
        if memories is not None:
            self._keep_chunks(memories, chunks_MPA)

    def _keep_chunks(self, memories: Memories, chunks_MPA: npt.NDArray[np.float32] | None) -> None:
        chunks_MPA = memories.actions_MA[:, None] if chunks_MPA is None else chunks_MPA
        expected = (len(memories.rows_M), self._length, self.action_dim)
        if chunks_MPA.shape != expected:
            raise ValueError(f"the memories' chunks have the shape {chunks_MPA.shape}, expected {expected}")
        self._chunks_MPA, self._unit_chunks_MPA = chunks_MPA, self.action_scale.to_unit(chunks_MPA)

    def start(self, seeds: Sequence[int]) -> list[Any]:
        """Return what is remembered of episodes that are about to begin: no observation or action, and a generator."""
        return [
            _Episode(
                observations=deque(maxlen=self._observed),
                generator=torch.Generator().manual_seed(int(episode_generator(seed).integers(2**63))),
            )
            for seed in seeds
        ]

    def _actions(self, obs_BD: Float32Array, state: list[Any] | None) -> Float32Array:
        episodes: list[_Episode] = self.start(range(len(obs_BD))) if state is None else state
        for obs_D, episode in zip(obs_BD, episodes, strict=True):
            missing = self._observed - len(episode.observations)
            episode.observations.extend([obs_D] * max(1, missing))  # before an episode its first observation stands
        if not all(episode.planned for episode in episodes):
            self._plan(obs_BD, episodes)
        return np.stack([episode.planned.popleft() for episode in episodes])

    def _plan(self, obs_BD: Float32Array, episodes: list[_Episode]) -> None:
        """Give the episodes without actions their next ones.

        The others keep their rows in every product, so that an episode's bits do not depend on its company.
        """
        due = [row for row, episode in enumerate(episodes) if not episode.planned]
        draws = 1 + int(np.count_nonzero(self._table_S6[:, 5]))  # none but the first by DDIM
        noise_BSPA = torch.zeros(len(episodes), draws, self._length, self.action_dim)
        for row in due:
            noise_BSPA[row].normal_(generator=episodes[row].generator)
        windows_BTD = torch.from_numpy(np.stack([np.stack(episode.observations) for episode in episodes]))
        if self.memories is None or self._search is None:
            raw_BPA = self.action_scale.to_raw(self._told(windows_BTD, noise_BSPA)[:, self._executed])
        else:
            index_B, distance_B = self._search(obs_BD)
            weight_B11 = self._weight(distance_B)[:, None, None]
            told_BPA = self._told(windows_BTD, noise_BSPA, (weight_B11, self._unit_chunks_MPA[index_B]))
            network_BPA = self.action_scale.to_raw(self._L * told_BPA[:, self._executed])
            # As elsewhere, in raw units the stored actions come back bit for bit.
            raw_BPA = blend(weight_B11, self._chunks_MPA[index_B][:, self._executed], network_BPA, 1.0)
        for row in due:
            episodes[row].planned.extend(raw_BPA[row])

    def _told(
        self,
        windows_BTD: torch.Tensor,
        noise_BSPA: torch.Tensor,
        memory: tuple[Float32Array, Float32Array] | None = None,
    ) -> Float32Array:
        """Return (B, P, A) actions that the network tells in the last step, in [-1, 1], before any blend.

        Args:
            windows_BTD: standardised observations.
            noise_BSPA: the first, and what is added after each step but the last.
            memory: (B, 1, 1) weights and (B, P, A) actions in units, or None.
        """
        batch, device, table = len(windows_BTD), self._device, self._table_S6.tolist()
        with torch.inference_mode():
            windows_BTD, noise_BSPA = windows_BTD.to(device), noise_BSPA.to(device)
            if memory is not None:
                weight_B11, actions_BPA = (torch.from_numpy(part).to(device) for part in memory)
            noisy_BPA = noise_BSPA[:, 0]
            for step, (_, signal, spread, from_clean, from_noisy, fresh) in enumerate(table):
                told_BPA = self._network(noisy_BPA, self._time_S1H[step].expand(batch, -1), windows_BTD)
                if self._settings["prediction"] == "noise":
                    told_BPA = (noisy_BPA - spread * told_BPA) / signal
                told_BPA = told_BPA.clamp(-1.0, 1.0)
                if step + 1 < len(table):
                    clean_BPA = told_BPA if memory is None else blend(weight_B11, actions_BPA, told_BPA, float(self._L))
                    noisy_BPA = from_clean * clean_BPA + from_noisy * noisy_BPA
                    if fresh:
                        noisy_BPA = noisy_BPA + fresh * noise_BSPA[:, step + 1]
            return told_BPA.cpu().numpy()  # type: ignore[no-any-return]

    def to(self, device: str) -> None:
        """Compute the network on a device of torch's from now on; noise is drawn on the CPU."""
        super().to(device)
        self._device = device
        self._network.to(device)
        self._time_S1H = self._time_S1H.to(device)

    def network_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the network's parameters, and the actions around memories, by name."""
        arrays = named_arrays(self._network.state_dict().items())
        if self.memories is not None and self._length > 1:
            arrays["memory_chunks"] = self._chunks_MPA
        return arrays

    def network_settings(self) -> dict[str, Any]:
        """Return the options that acting depends on."""
        return dict(self._settings)

    @classmethod
    def from_parts(
        cls,
        card: dict[str, Any],
        standardiser: Standardiser,
        action_scale: ActionScale,
        arrays: dict[str, npt.NDArray[Any]],
        settings: dict[str, Any],
    ) -> DiffusionPolicy:
        """Build the policy from its arrays and settings."""
        memories, chunks_MPA = Memories.from_parts(arrays, settings), arrays.get("memory_chunks")
        return cls(card, standardiser, action_scale, settings, named_parameters(arrays), memories, chunks_MPA)


def _read_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    settings = read_options(DIFFUSION_OPTIONS, _SETTINGS, options)
    try:
        check_diffusion(settings)
    except ConfigError as error:
        raise ValueError(str(error)) from error
    return settings
