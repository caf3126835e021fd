"""Training LSTMs with a mixture of Gaussians; see `mcnn_ray.policies.lstm_gmm`.

Shapes: B batch, T steps of a window.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from mcnn_ray.member import Member
from mcnn_ray.policies.lstm_gmm import LstmGmmNetwork
from mcnn_ray.training.learner import copied_state
from mcnn_ray.training.step_shape import StepCost
from mcnn_ray.training.windows import WindowLearner

__all__ = ["LstmGmmLearner"]


class LstmGmmLearner(WindowLearner):
    """One member of the family `lstm-gmm`: negative log-likelihood of the actions; Adam. Arguments of `WindowLearner`.

    Windows are full ones, as in real-stanford/diffusion_policy, config/task/kitchen_lowdim.yaml (no padding after the
    end); robomimic has more, which begin at an episode's last steps and repeat the last one.
    """

    def _make_networks(self) -> torch.nn.ModuleDict:
        self._network = LstmGmmNetwork(self.observation_dim, self.action_dim, dict(self.member.options))
        return torch.nn.ModuleDict({"lstm_gmm": self._network})

    def _make_optimisers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.Adam(self._network.parameters(), lr=self.member.learning_rate or 0.0)]

    def _losses(self, rows_BT: torch.Tensor, step: int) -> torch.Tensor:
        """Return the (B, T) loss of each step; it is below 0 where the density is above 1."""
        return -self._network.log_likelihood(self.data.obs_ND[rows_BT], self.data.actions_NA[rows_BT])

    def policy_arrays(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return copies of the network's parameters, by name."""
        return copied_state(self._network)

    @classmethod
    def cost(cls, member: Member, dim: int, actions: int) -> StepCost:
        """Count a step's work and memory, for `dim` observation numbers and `actions` action numbers."""
        options = dict(member.options)
        with torch.device("meta"):
            network = LstmGmmNetwork(dim, actions, options)
        weights = sum(parameter.numel() for parameter in network.parameters() if parameter.dim() > 1)
        units, layers, modes = int(options["hidden_units"]), int(options["layers"]), int(options["modes"])
        tokens = (member.batch_size or 0) * int(options["window"])
        # The 18 is what torch's LSTM was seen to keep on a CPU; gates and states alone are 6.
        kept = dim + 18 * layers * units + modes * (2 + 8 * actions)
        return StepCost(
            parameters=sum(parameter.numel() for parameter in network.parameters()),
            flop=tokens * (6 * weights - 8 * dim * units),  # the observations need no gradient
            kept=tokens * kept,
            share=0.73,
            act_flop=2 * weights,
            act_share=0.26,
        )
