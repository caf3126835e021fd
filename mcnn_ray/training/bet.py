"""Training Behavior Transformers, alone or blended with memories; see `mcnn_ray.policies.bet`.

Shapes: N transitions, B batch, T steps of a window, D observation numbers, A action numbers, C clusters.
"""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt
import torch
from scipy.cluster.vq import kmeans2

from mcnn_ray.core.blend import beta_at, blend, sigma_beta
from mcnn_ray.data.demonstrations import Demonstrations
from mcnn_ray.errors import ConfigError
from mcnn_ray.member import Member
from mcnn_ray.policies.bet import BetNetwork
from mcnn_ray.training.data import Shard, TrainingData
from mcnn_ray.training.learner import copied_state
from mcnn_ray.training.step_shape import StepCost
from mcnn_ray.training.windows import WindowLearner

__all__ = ["BetLearner", "action_centres", "focal_loss"]

_OFFSET_WEIGHT = 1e3  # of the offsets' loss over that of the clusters; as the other numbers here, of the official code
_BETAS = (0.9, 0.999)
_ITERATIONS = 50  # of k-means
_CLUSTERED = 100_000  # actions at most, drawn; the paper takes as many as are seen in 100 steps


def action_centres(actions_NA: npt.NDArray[np.float32], count: int, seed: int) -> npt.NDArray[np.float32]:
    """Return (C, A) float32 centres of so many clusters of actions in [-1, 1], by k-means (k-means++).

    Raises:
        ConfigError: there are fewer distinct actions than clusters.
    """
    generator = np.random.default_rng(seed)
    if len(actions_NA) > _CLUSTERED:
        actions_NA = actions_NA[generator.choice(len(actions_NA), _CLUSTERED, replace=False)]
    _check_distinct(actions_NA, count)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a cluster that loses all its actions keeps its centre
        centres_CA, _ = kmeans2(actions_NA.astype(np.float64), count, iter=_ITERATIONS, minit="++", rng=generator)
    return np.clip(centres_CA, -1.0, 1.0).astype(np.float32)


def _check_distinct(actions_NA: npt.NDArray[np.float32], clusters: int) -> None:
    distinct = len(np.unique(actions_NA[:_CLUSTERED], axis=0))
    if distinct < clusters:
        raise ConfigError(
            f"option clusters is {clusters}, but the demonstrations have {distinct} distinct actions; ask for at most "
            f"{distinct} clusters, or learn from more episodes"
        )


def focal_loss(logits_C: torch.Tensor, label: torch.Tensor, gamma: float) -> torch.Tensor:
    """Return `-(1 - p)^gamma log p` of the labels' probabilities p, for (..., C) logits and (...) int64 labels."""
    log_p = logits_C.log_softmax(-1).gather(-1, label[..., None])[..., 0]
    # Away from 0, where a power below 1 has no gradient.
    rest = -torch.expm1(log_p).clamp(max=-1e-7)
    return -(rest**gamma) * log_p


class BetLearner(WindowLearner):
    """A Behavior Transformer: focal loss of the cluster, and squared error of the action from the true cluster.

    Args:
        member: of the family `bet`.
        data: what it learns from; a batch is of windows, which never cross episodes.
        shard: this worker's part of every batch, when several train the same member.

    Raises:
        ConfigError: there are fewer distinct actions than clusters.
    """

    def __init__(self, member: Member, data: TrainingData, shard: Shard | None = None) -> None:
        self._gamma, self._key = float(member.option("focal_gamma")), member.memory_key
        super().__init__(member, data, shard)

    def _make_networks(self) -> torch.nn.ModuleDict:
        self._network = BetNetwork(self.observation_dim, self.action_dim, dict(self.member.options))
        clusters, actions_NA = int(self.member.option("clusters")), self.data.actions_NA.cpu().numpy()
        self._network.centres.copy_(torch.from_numpy(action_centres(actions_NA, clusters, self.member.seed)))
        return torch.nn.ModuleDict({"bet": self._network})

    def _make_optimisers(self) -> list[torch.optim.Optimizer]:
        decay: dict[bool, list[torch.nn.Parameter]] = {True: [], False: []}
        for name, parameter in self._network.named_parameters():
            decay[parameter.dim() > 1 and not name.startswith("positions")].append(parameter)
        rate, weight_decay = self.member.learning_rate or 0.0, float(self.member.option("weight_decay"))
        groups = [{"params": decay[True], "weight_decay": weight_decay}, {"params": decay[False], "weight_decay": 0.0}]
        return [torch.optim.AdamW(groups, lr=rate, betas=_BETAS)]

    @classmethod
    def check(cls, member: Member, demonstrations: Demonstrations) -> None:
        """Refuse demonstrations with fewer windows than a batch has, or fewer distinct actions than clusters.

        Raises:
            ConfigError: they have.
        """
        super().check(member, demonstrations)
        _check_distinct(demonstrations.actions_NA, int(member.option("clusters")))

    def _losses(self, rows_BT: torch.Tensor, step: int) -> torch.Tensor:
        """Return the (B, T) loss of each step."""
        actions_BTA, centres_CA = self.data.actions_NA[rows_BT], self._network.centres
        label_BT = (centres_CA.square().sum(1) - 2.0 * actions_BTA @ centres_CA.T).argmin(-1)
        logits_BTC, offsets_BTCA = self._network.heads(self._network(self.data.obs_ND[rows_BT]))
        offset_BTA = offsets_BTCA.take_along_dim(label_BT[..., None, None], 2)[:, :, 0]
        predicted_BTA = self._predicted(centres_CA[label_BT], offset_BTA, rows_BT, step)
        errors_BT = (predicted_BTA - actions_BTA).square().mean(-1)
        return focal_loss(logits_BTC, label_BT, self._gamma) + _OFFSET_WEIGHT * errors_BT

    def _predicted(
        self, centre_BTA: torch.Tensor, offset_BTA: torch.Tensor, rows_BT: torch.Tensor, step: int
    ) -> torch.Tensor:
        """Return (B, T, A) actions: centre and offset, blended with each step's own nearest memory."""
        if self._key is None or self.member.lambda_ is None or self.member.L is None:
            return centre_BTA + offset_BTA
        beta = beta_at(step + 1, self.member.beta_schedule or "paper")
        network_BTA = centre_BTA + self.member.L * 2.0 * sigma_beta(offset_BTA / 2.0, beta)
        weight_BT = torch.exp(-self.member.lambda_ * self.data.distances[self._key][rows_BT])
        return blend(weight_BT[..., None], self.data.memory_actions[self._key][rows_BT], network_BTA, 1.0)

    def policy_arrays(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return copies of the network's parameters and centres, by name."""
        return copied_state(self._network)

    @classmethod
    def cost(cls, member: Member, dim: int, actions: int) -> StepCost:
        """Count a step's work and memory, for `dim` observation numbers and `actions` action numbers."""
        options = dict(member.options)
        with torch.device("meta"):
            network = BetNetwork(dim, actions, options)
        parameters = sum(parameter.numel() for parameter in network.parameters())
        window, layers, width = int(options["window"]), int(options["layers"]), int(options["width"])
        tokens, looks = (member.batch_size or 0) * window, int(options["heads"]) * window
        # Of a layer: inputs, outputs and dropout masks of its products and norms, and attention before and after it.
        kept = layers * (20 * width + 3 * looks) + 3 * int(options["clusters"]) * (1 + actions) + dim + 3 * width
        token_flop = 2 * (parameters + 2 * layers * window * width)
        return StepCost(
            parameters=parameters,
            flop=3 * tokens * token_flop,
            kept=tokens * kept,
            share=0.5,
            act_flop=window * token_flop,
            act_share=0.47,
        )
