"""Encoders behaviour-cloned from demonstrations: the recipe of the paper's, on data that is at hand.

Shapes: N steps, X numbers of an image, B batch, A action numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from mcnn_ray.core.normalise import ActionScale
from mcnn_ray.data.demonstrations import Demonstrations
from mcnn_ray.encoders.encoder import Encoder
from mcnn_ray.encoders.networks import ARCHITECTURES, EMBEDDING, IMAGE_SHAPE, weights_of
from mcnn_ray.errors import ConfigError, DatasetError, did_you_mean
from mcnn_ray.tasks.catalogue import Task
from mcnn_ray.tasks.environments import make_environment

__all__ = ["CloningSettings", "clone_encoder", "clone_task_encoder"]

_HEAD = 256  # units between the embedding and the actions
_HELD_OUT = 0.1  # of the episodes
_BATCH = 256  # images at once where nothing is learned


@dataclass(frozen=True, slots=True, kw_only=True)
class CloningSettings:
    """How an encoder is cloned.

    Attributes:
        architecture: one of `mcnn_ray.encoders.networks.ARCHITECTURES`.
        steps: of Adam, at least 1.
        batch_size: images a step, at least 2: batch normalisation compares them.
        learning_rate: Adam's, above 0; it falls to 0 by a cosine.
        seed: of initial weights, batches and the episodes held out.
    """

    architecture: str = "small"
    steps: int = 3000
    batch_size: int = 64
    learning_rate: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        if self.architecture not in ARCHITECTURES:
            raise ConfigError(
                f"unknown architecture '{self.architecture}'; {did_you_mean(self.architecture, ARCHITECTURES)}"
            )
        if self.steps < 1 or self.batch_size < 2 or not self.learning_rate > 0:
            raise ConfigError(
                f"steps {self.steps}, batch size {self.batch_size}, learning rate {self.learning_rate:g}: expected at "
                "least 1, at least 2 and above 0"
            )


def clone_task_encoder(
    task: Task,
    demonstrations: Demonstrations,
    settings: CloningSettings,
    progress: Callable[[int], None] | None = None,
) -> Encoder:
    """Clone an encoder from a task's demonstrations; see `clone_encoder`.

    Raises:
        DatasetError: they are not fit for it, or actions lie outside the environment's bounds.
    """
    env = make_environment(task)
    space: Any = env.action_space
    env.close()
    scale = ActionScale(low_A=space.low.astype(np.float32), high_A=space.high.astype(np.float32))
    return clone_encoder(demonstrations.check_actions(scale.low_A, scale.high_A), scale, settings, progress)


def clone_encoder(
    demonstrations: Demonstrations,
    scale: ActionScale,
    settings: CloningSettings,
    progress: Callable[[int], None] | None = None,
) -> Encoder:
    """Train a network to give the demonstrated actions, and keep all but its head.

    A tenth of the episodes is held out, to state how far the actions are off on images that were not learned from.

    Args:
        demonstrations: images and actions.
        scale: of the actions.
        settings: architecture and training.
        progress: called with the steps taken.

    Returns:
        An encoder whose facts are the settings, the demonstrations' hash, and mean squared errors of actions in [-1, 1]
        on the episodes held out: `held_out_mse`, and `held_out_mse_of_mean` for always giving the mean action.

    Raises:
        DatasetError: the observations are no such images, or there are too few of them.
    """
    width = int(np.prod(IMAGE_SHAPE))
    if demonstrations.observations_ND.shape[1] != width:
        raise DatasetError(
            f"{demonstrations.source} has {demonstrations.observations_ND.shape[1]} observation numbers, images of "
            f"{' x '.join(map(str, IMAGE_SHAPE))} have {width}"
        )
    learned_N, held_out_N = _split(demonstrations, settings.seed)
    if len(learned_N) < settings.batch_size:
        raise DatasetError(
            f"{demonstrations.source} has {len(learned_N)} steps to learn from, the batch size is {settings.batch_size}"
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    units_NA = scale.to_unit(demonstrations.actions_NA)
    with torch.random.fork_rng(devices=[]):  # the caller's own draws stay as they are
        torch.manual_seed(settings.seed)
        encoder = ARCHITECTURES[settings.architecture]()
        head = nn.Sequential(nn.Linear(EMBEDDING, _HEAD), nn.ReLU(), nn.Linear(_HEAD, units_NA.shape[1]))
    network = nn.Sequential(encoder, head).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    _train(network, demonstrations.observations_ND, units_NA, learned_N, settings, progress)
    mean_A = units_NA[learned_N].mean(0)
    return Encoder(
        "bc",
        settings.architecture,
        weights_of(encoder),
        {
            **asdict(settings),
            "dataset": {"source": demonstrations.source, "sha256": demonstrations.sha256},
            "held_out_mse": _error(network, demonstrations.observations_ND, units_NA, held_out_N),
            "held_out_mse_of_mean": float(np.square(units_NA[held_out_N] - mean_A).mean()),
        },
    )


def _split(demonstrations: Demonstrations, seed: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the rows to learn from and those of the episodes held out."""
    episodes = demonstrations.episodes
    if episodes < 2:
        raise DatasetError(f"{demonstrations.source} has {episodes} episode; at least 2 are needed, to hold one out")
    order_E = np.random.default_rng(seed).permutation(episodes)
    held_out = order_E[: max(1, round(_HELD_OUT * episodes))]
    episode_N = np.repeat(np.arange(episodes), demonstrations.lengths)
    outside_N = np.isin(episode_N, held_out)
    return np.flatnonzero(~outside_N), np.flatnonzero(outside_N)


def _images(observations_ND: npt.NDArray[np.float32], rows_B: npt.NDArray[np.int64], device: str) -> torch.Tensor:
    images_BHWC = torch.from_numpy(observations_ND[rows_B]).to(device).view(-1, *IMAGE_SHAPE)
    return images_BHWC.permute(0, 3, 1, 2)


def _train(
    network: nn.Module,
    observations_ND: npt.NDArray[np.float32],
    units_NA: npt.NDArray[np.float32],
    rows_N: npt.NDArray[np.int64],
    settings: CloningSettings,
    progress: Callable[[int], None] | None,
) -> None:
    device = next(network.parameters()).device.type
    rng = np.random.default_rng((settings.seed, 1))
    optimiser = torch.optim.Adam(network.parameters(), settings.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, settings.steps)
    network.train()
    for step in range(settings.steps):
        rows_B = rng.choice(rows_N, settings.batch_size, replace=False)
        target_BA = torch.from_numpy(units_NA[rows_B]).to(device)
        loss = nn.functional.mse_loss(network(_images(observations_ND, rows_B, device)), target_BA)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if progress is not None:
            progress(step + 1)


@torch.inference_mode()
def _error(
    network: nn.Module,
    observations_ND: npt.NDArray[np.float32],
    units_NA: npt.NDArray[np.float32],
    rows_N: npt.NDArray[np.int64],
) -> float:
    """Return the mean squared error of a network's actions in [-1, 1] over rows."""
    network.eval()
    device = next(network.parameters()).device.type
    squares = np.zeros(units_NA.shape[1])
    for start in range(0, len(rows_N), _BATCH):
        rows_B = rows_N[start : start + _BATCH]
        output_BA = network(_images(observations_ND, rows_B, device)).cpu().numpy()
        squares += np.square(output_BA - units_NA[rows_B], dtype=np.float64).sum(0)
    return float(squares.mean()) / len(rows_N)
