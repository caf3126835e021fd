"""Networks as users write them, sound and faulty: `tests.backbones.Deep` and so on."""

import torch
from torch import nn


class Deep(nn.Sequential):
    """The same function as the MLP with hidden widths 16, 16."""

    def __init__(self, observation_dim, action_dim):
        super().__init__(
            nn.Linear(observation_dim, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, action_dim)
        )


class Residual(nn.Module):
    """Fixed random features, a residual block with dropout, layers tied to each other, a parameter that is a number."""

    def __init__(self, observation_dim, action_dim):
        super().__init__()
        self.features = nn.Parameter(0.3 * torch.randn(observation_dim, 16), requires_grad=False)
        self.block = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.5))
        self.again = self.block
        self.gain = nn.Parameter(torch.tensor(0.5))
        self.last = nn.LazyLinear(action_dim)

    def forward(self, obs):
        hidden = torch.sin(obs @ self.features)
        hidden = hidden + self.gain * self.block(hidden)
        return self.last(hidden + self.again(hidden))


class Normalised(nn.Sequential):
    def __init__(self, observation_dim, action_dim):
        super().__init__(nn.Linear(observation_dim, 8), nn.BatchNorm1d(8), nn.Linear(8, action_dim))


class OneNumber(nn.Linear):
    def __init__(self, observation_dim):
        super().__init__(observation_dim, 1)


class Broken(nn.Linear):
    def __init__(self, observation_dim, action_dim):
        raise RuntimeError("no weights\nmore of it")


class WrongWay(nn.Linear):
    def __init__(self, observation_dim, action_dim):
        super().__init__(action_dim, observation_dim)


class Squeezed(nn.Linear):
    def forward(self, obs):
        return super().forward(obs).squeeze()


class Pair(nn.Linear):
    def forward(self, obs):
        return super().forward(obs), None


class Double(nn.Linear):
    def forward(self, obs):
        return super().forward(obs).double()


class Half(nn.Linear):
    def __init__(self, observation_dim, action_dim):
        super().__init__(observation_dim, action_dim, dtype=torch.float64)

    def forward(self, obs):
        return super().forward(obs.double()).float()


class Unlearned(nn.Module):
    def __init__(self, observation_dim, action_dim):
        super().__init__()
        self.layers = [nn.Linear(observation_dim, action_dim)]

    def forward(self, obs):
        return self.layers[0](obs)


class Branching(nn.Linear):
    def forward(self, obs):
        output = super().forward(obs)
        return -output if output.sum() > 0 else output


class Noisy(nn.Linear):
    def forward(self, obs):
        return super().forward(nn.functional.dropout(obs))


class Detached(nn.Linear):
    def forward(self, obs):
        return super().forward(obs).detach()


class Hidden(nn.Linear):
    """Random features that are neither parameters nor buffers."""

    def __init__(self, observation_dim, action_dim):
        super().__init__(8, action_dim)
        self.features = torch.randn(observation_dim, 8)

    def forward(self, obs):
        return super().forward(obs @ self.features)


class Mixing(nn.Linear):
    def forward(self, obs):
        return super().forward(obs - obs.mean(0))


def function(observation_dim, action_dim):
    return nn.Linear(observation_dim, action_dim)
