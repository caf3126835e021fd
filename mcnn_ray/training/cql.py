"""Conservative Q-learning (Kumar et al. 2020, https://arxiv.org/abs/2006.04779) of demonstrations with sparse rewards.

The last step of a demonstration that succeeded earns 1 and ends it; all others earn 0. The last step of one that failed
is left out, since what was seen after it is not known. A step minimises, for each of two critics Q_i whose targets Q'_i
follow them slowly,

    mean (Q_i(s, a) - r - gamma (1 - end) min_j Q'_j(s', tanh mean(s')))^2 + alpha (gap_i - threshold)
    gap_i = mean [log sum_u exp(Q_i(s, u) - log p(u)) - Q_i(s, a)]

where u are actions drawn uniformly, by the policy at s and by the policy at s', as many of each, and p their densities.
alpha itself moves so that the gaps come to the threshold. The actor, a Gaussian squashed by tanh, maximises the lesser
critic and its entropy, which a temperature holds at -A.

Where Kumar's code and d3rlpy 2.8.1 differ, this is d3rlpy (its `initial_alpha` is alpha, its `conservative_weight` 1),
and `tests/benchmarks/compare_cql.py` holds the two together. The target takes the policy's mean action, not a sample.
The order is alpha, critics, temperature, actor. alpha multiplies gap - threshold, as in the paper; Kumar's code has
5 gap - threshold there, so its threshold of 5 is 1 here. The temperature's loss is linear in it, not in its logarithm.
The rates are those of Kumar's code: the temperature's is the actor's, alpha's the critics'. Of neither: s' of a last
step is s, and only has actions drawn there.

Shapes: B batch, K transitions, D observation numbers, A action numbers, C critics, S actions of each
kind, U = 3 S, V = U + 1.
"""

from __future__ import annotations

import copy
import itertools
import logging
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import softplus

from mcnn_ray.data.demonstrations import Demonstrations
from mcnn_ray.errors import ConfigError, DatasetError
from mcnn_ray.member import Member
from mcnn_ray.policies.mlp import layer_arrays
from mcnn_ray.training.data import Shard, TrainingData, check_rows
from mcnn_ray.training.learner import Learner
from mcnn_ray.training.step_shape import StepCost, StepShape

__all__ = ["CqlLearner"]

logger = logging.getLogger(__name__)

_GAMMA = 0.99
_TAU = 0.005  # by which targets follow at each step
_LOG_DEVIATIONS = (-20.0, 2.0)
_MOST_ALPHA = 1e6
_CRITICS = 2


class _Actor(torch.nn.Module):
    """Observations to mean and standard deviation of an action before tanh."""

    def __init__(self, observation_dim: int, hidden: Sequence[int], action_dim: int) -> None:
        super().__init__()
        self.trunk = _rectified((observation_dim, *hidden))
        self.mean = torch.nn.Linear(hidden[-1], action_dim)
        self.log_deviation = torch.nn.Linear(hidden[-1], action_dim)

    def forward(self, obs_BD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden_BH = self.trunk(obs_BD)
        return self.mean(hidden_BH), self.log_deviation(hidden_BH).clamp(*_LOG_DEVIATIONS).exp()


class CqlLearner(Learner):
    """Actor, critics, targets, temperature and alpha; arguments and errors are those of `Learner`.

    Attributes:
        actor: of the policy, which acts with the tanh of its mean.
        critics: each maps (..., D + A) observations and actions to (..., 1) values.
        targets: of the critics.
        log_temperature: (1,).
        log_alpha: (1,).
        parts: () losses of the last step, of this part times its share: `td`, `conservative`, `temperature`, `actor`
            and, where alpha is tuned, `alpha`.

    Raises:
        ConfigError: no demonstration succeeded, or the batch is larger than the transitions.
    """

    def __init__(self, member: Member, data: TrainingData, shard: Shard | None = None) -> None:
        rows_K, next_K, ends_K = _transitions(data)
        if not ends_K.any():
            raise ConfigError("no demonstration succeeded, so cql-sparse has no reward to learn from")
        check_rows(member, len(rows_K), "transitions whose outcome is known")
        self._samples, self._threshold = int(member.option("action_samples")), float(member.option("lagrange"))
        self.parts: dict[str, torch.Tensor] = {}
        super().__init__(member, data, shard)
        self._rows_K = torch.tensor(rows_K, device=self.device)
        self._next_K = torch.tensor(next_K, device=self.device)
        self._ends_K = torch.tensor(ends_K, dtype=torch.float32, device=self.device)

    def _make_networks(self) -> torch.nn.ModuleDict:
        widths = (self.observation_dim + self.action_dim, *self.member.hidden)
        self.actor = _Actor(self.observation_dim, self.member.hidden, self.action_dim)
        self.critics = torch.nn.ModuleList(
            _rectified(widths).append(torch.nn.Linear(widths[-1], 1)) for _ in range(_CRITICS)
        )
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_temperature = torch.nn.Parameter(torch.zeros(1))
        self.log_alpha = torch.nn.Parameter(torch.full((1,), math.log(self.member.option("alpha"))))
        scales = torch.nn.ParameterDict({"temperature": self.log_temperature, "alpha": self.log_alpha})
        return torch.nn.ModuleDict(
            {"actor": self.actor, "critics": self.critics, "targets": self.targets, "scales": scales}
        )

    def _make_optimisers(self) -> list[torch.optim.Optimizer]:
        rate, critic_rate = self.member.learning_rate or 0.0, float(self.member.option("critic_learning_rate"))
        optimisers: list[torch.optim.Optimizer] = [
            torch.optim.Adam(self.critics.parameters(), lr=critic_rate),
            torch.optim.Adam([self.log_temperature], lr=rate),
            torch.optim.Adam(self.actor.parameters(), lr=rate),
        ]
        return [*optimisers, torch.optim.Adam([self.log_alpha], lr=critic_rate)] if self._threshold else optimisers

    @classmethod
    def check(cls, member: Member, demonstrations: Demonstrations) -> None:
        """Make sure that there are successes to learn from; warn where they were not recorded.

        Raises:
            DatasetError: no demonstration succeeded.
        """
        if demonstrations.successes_E is None:
            logger.warning(
                "%s does not say which demonstrations succeeded; cql-sparse takes it that all did, as the paper does",
                demonstrations.source,
            )
        elif not demonstrations.successes_E.any():
            raise DatasetError(
                f"{demonstrations.source}: none of {demonstrations.episodes} demonstrations succeeded, so cql-sparse "
                "has no reward to learn from; record some that do, or use a method without rewards, such as bc"
            )

    @property
    def choices(self) -> int:
        """Transitions whose outcome is known."""
        return len(self._rows_K)

    def learn(self, drawn_B: torch.Tensor, step: int) -> torch.Tensor:
        """Take one step of alpha, critics, temperature, actor and targets, in this order; return the critics' loss."""
        share = len(drawn_B) / self.batch
        noise = self._noise()
        obs_BD = self.data.obs_ND[self._rows_K[drawn_B]]
        errors_C, gaps_C = self._critic_terms(drawn_B, obs_BD, noise)
        td = share * errors_C.sum()
        if self._threshold:
            self._descend(3, "alpha", -share * (self._alpha() * (gaps_C.detach() - self._threshold)).mean())
        conservative = share * (self._alpha().detach() * (gaps_C - self._threshold)).sum()
        self.parts |= {"td": td.detach(), "conservative": conservative.detach()}
        self.descend(self.optimisers[0], td + conservative)
        mean_BA, deviation_BA = self.actor(obs_BD)
        action_BA, log_density_B = _squashed(mean_BA, deviation_BA, noise[3])
        excess_B = log_density_B.detach() - self.action_dim
        self._descend(1, "temperature", -share * (self.log_temperature.exp() * excess_B).mean())
        value_B = _values(self.critics, obs_BD, action_BA).amin(0)
        temperature = self.log_temperature.detach().exp()
        self._descend(2, "actor", share * (temperature * log_density_B - value_B).mean())
        with torch.no_grad():
            for target, critic in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
                target.lerp_(critic, _TAU)
        return self.parts["td"] + self.parts["conservative"]

    def _descend(self, optimiser: int, name: str, loss: torch.Tensor) -> None:
        self.parts[name] = loss.detach()
        self.descend(self.optimisers[optimiser], loss)

    def _alpha(self) -> torch.Tensor:
        return self.log_alpha.exp().clamp(0.0, _MOST_ALPHA)

    def _noise(self) -> tuple[torch.Tensor, ...]:
        """Draw for the whole batch, in d3rlpy's order, and return this worker's part.

        Returns:
            (S, B, A) normal for the policy at s; the same at s'; (B, S, A) uniform in [-1, 1]; (B, A) normal for the
            actor.
        """
        sampled = (self._samples, self.batch, self.action_dim)
        rows = slice(None) if self.shard is None else self.shard.rows(self.batch)
        now_SBA, next_SBA = (torch.randn(sampled, device=self.device)[:, rows] for _ in range(2))
        uniform_BSA = torch.empty(self.batch, self._samples, self.action_dim, device=self.device).uniform_(-1.0, 1.0)
        actor_BA = torch.randn(self.batch, self.action_dim, device=self.device)
        return now_SBA, next_SBA, uniform_BSA[rows], actor_BA[rows]

    def _critic_terms(
        self, drawn_B: torch.Tensor, obs_BD: torch.Tensor, noise: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return each critic's mean squared temporal difference and its gap, (2,) each."""
        now_SBA, next_SBA, uniform_BSA, _ = noise
        ends_B = self._ends_K[drawn_B]
        with torch.no_grad():
            next_BD = self.data.obs_ND[self._next_K[drawn_B]]
            next_mean_BA, next_deviation_BA = self.actor(next_BD)
            next_value_B = _values(self.targets, next_BD, next_mean_BA.tanh()).amin(0)
            aim_B = ends_B + _GAMMA * (1.0 - ends_B) * next_value_B
            mean_BA, deviation_BA = self.actor(obs_BD)
            here_SBA, here_SB = _squashed(mean_BA, deviation_BA, now_SBA)
            there_SBA, there_SB = _squashed(next_mean_BA, next_deviation_BA, next_SBA)
            random_BS = torch.full(uniform_BSA.shape[:2], -self.action_dim * math.log(2.0), device=self.device)
            log_density_BU = torch.cat([here_SB.T, there_SB.T, random_BS], 1)
            demonstrated_B1A = self.data.actions_NA[self._rows_K[drawn_B]][:, None]
            action_BVA = torch.cat(
                [here_SBA.transpose(0, 1), there_SBA.transpose(0, 1), uniform_BSA, demonstrated_B1A], 1
            )
        value_CBV = _values(self.critics, obs_BD[:, None].expand(-1, action_BVA.shape[1], -1), action_BVA)
        demonstrated_CB = value_CBV[..., -1]
        soft_maximum_CB = (value_CBV[..., :-1] - log_density_BU).logsumexp(2)
        return (demonstrated_CB - aim_B).square().mean(1), (soft_maximum_CB - demonstrated_CB).mean(1)

    def policy_arrays(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return copies of the layers up to the actor's mean, as `mcnn_ray.policies.mlp` takes them."""
        linears = [layer for layer in self.actor.trunk if isinstance(layer, torch.nn.Linear)]
        arrays = layer_arrays((layer.weight.T, layer.bias) for layer in (*linears, self.actor.mean))
        return {name: np.array(tensor.detach().cpu().numpy(), order="C") for name, tensor in arrays.items()}

    @classmethod
    def cost(cls, member: Member, dim: int, actions: int) -> StepCost:
        """Count a step's work and memory, nearly all of it the critics' at the drawn actions."""
        batch, drawn = member.batch_size or 0, 3 * int(member.option("action_samples")) + 1

        def shape(inputs: int, outputs: int, rows: int) -> StepShape:
            return StepShape(dim=inputs, hidden=member.hidden, actions=outputs, batch_size=rows)

        actor, critic = shape(dim, 2 * actions, batch), shape(dim + actions, 1, drawn * batch)
        # Once more forward go the actor at s and at s', the targets and, with gradients of their inputs, the critics.
        once = 2 * actor.parameters + 3 * _CRITICS * critic.parameters
        return StepCost(
            parameters=actor.parameters + _CRITICS * critic.parameters,
            flop=actor.flop + _CRITICS * critic.flop + 2 * batch * once,
            kept=_CRITICS * (critic.parameters + 2 * drawn * batch * (dim + actions + sum(member.hidden))),
            share=0.77,
        )


def _rectified(widths: Sequence[int]) -> torch.nn.Sequential:
    layers: list[torch.nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(widths):
        layers += [torch.nn.Linear(fan_in, fan_out), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers)


def _values(critics: torch.nn.ModuleList, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """Return (2, ...) values of (..., D) observations and (..., A) actions."""
    inputs = torch.cat([obs, action], -1)
    return torch.stack([critic(inputs).squeeze(-1) for critic in critics])


def _squashed(mean: torch.Tensor, deviation: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (..., A) actions in [-1, 1] drawn with standard normal noise, and their (...) log-densities."""
    raw = mean + deviation * noise
    log_normal = -0.5 * noise.square() - deviation.log() - 0.5 * math.log(2.0 * math.pi)
    log_slope = 2.0 * (math.log(2.0) - raw - softplus(-2.0 * raw))  # of tanh
    return raw.tanh(), (log_normal - log_slope).sum(-1)


def _transitions(data: TrainingData) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return (K,) rows whose outcome is known, the row that follows each, and whether each earns 1 and ends."""
    rows_N = np.arange(data.offsets[-1])
    last_N = np.isin(rows_N, data.offsets[1:] - 1)
    success_N = np.repeat(data.successes, np.diff(data.offsets))
    known_N = ~last_N | success_N
    return rows_N[known_N], (rows_N + ~last_N)[known_N], last_N[known_N]
