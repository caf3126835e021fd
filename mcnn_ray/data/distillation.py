"""Distilling an expert: DAgger from a public expert to a smaller network of this project's own.

The student meets its own mistakes (DAgger): it is rolled out with its noise, every state it visits is labelled with the
public expert's mean action, and it is trained on all states so far. The loss is the divergence of the two Gaussians,
which share their spread: errors count in units of the noise, so a joint that the expert moves precisely is learnt
precisely. How long this goes on is decided on the training seeds; the checking seeds are met once, at the end.

Shapes: N states, D observation numbers, A action numbers, E episodes, H hidden units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from mcnn_ray.data.experts import Expert
from mcnn_ray.stats import Interval, mean_interval, rate_interval
from mcnn_ray.tasks.environments import simulator_versions

__all__ = ["CHECKING_SEED", "Agreement", "Rollouts", "Settings", "Standing", "check", "distil", "roll_out", "work"]

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
Tick = Callable[[str], None]

CHECKING_SEED = 3_000_000  # training seeds count from 0 and stay far below


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How an expert is distilled and checked.

    Attributes:
        hidden: units of each of the two hidden layers.
        first_episodes: episodes of the public expert that start the aggregate.
        rounds: times the student is rolled out, labelled and trained again.
        round_episodes: episodes a round.
        round_steps: training steps a round.
        final_steps: training steps after the last round.
        batch: states a training step.
        learning_rate: Adam's, falling to a hundredth along a cosine in each training.
        check_episodes: episodes of each of the two policies in the final check.
        seed: of the weights and the batches.
    """

    hidden: int = 64
    first_episodes: int = 25
    rounds: int = 6
    round_episodes: int = 15
    round_steps: int = 4000
    final_steps: int = 30_000
    batch: int = 256
    learning_rate: float = 3e-3
    check_episodes: int = 200
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """Episodes of one policy.

    Attributes:
        observations: (N, D) float64 states in which the policy acted, raw units.
        returns: (E,) float64.
        success_any: (E,) bool, success at any step.
        success_last: (E,) bool, success at the last step.
    """

    observations: Float64Array
    returns: Float64Array
    success_any: npt.NDArray[np.bool_]
    success_last: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A policy's figures over the checking episodes, each with its 95 % interval.

    Attributes:
        episode_return: mean return, bootstrap interval.
        success: share of episodes with success at any step, in [0, 1], Wilson interval.
        success_last: share with success at the last step, in [0, 1], Wilson interval.
    """

    episode_return: Interval
    success: Interval
    success_last: Interval

    @classmethod
    def of(cls, rollouts: Rollouts) -> Standing:
        """Summarise episodes."""
        return cls(
            episode_return=mean_interval([rollouts.returns.tolist()]),
            success=rate_interval(int(rollouts.success_any.sum()), len(rollouts.returns)),
            success_last=rate_interval(int(rollouts.success_last.sum()), len(rollouts.returns)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The student beside the original, on the same episode seeds with the same noise.

    Attributes:
        original: the public expert's figures.
        student: the distilled expert's.
        episodes: of each.
        first_seed: episode k has the seed `first_seed + k`.
        mean_action_rmse: root mean square difference of the two means, clipped as the environment does, over all
            actions in all states that the student visited.
        simulator: installed versions.
    """

    original: Standing
    student: Standing
    episodes: int
    first_seed: int
    mean_action_rmse: float
    simulator: dict[str, str]

    @property
    def reached(self) -> bool:
        """Whether the student's mean return and success rate lie within the original's 95 % intervals."""
        pairs = (
            (self.original.episode_return, self.student.episode_return),
            (self.original.success, self.student.success),
        )
        return all(original.covers(student.mean) for original, student in pairs)


def roll_out(policy: Expert, env: gym.Env[Any, Any], seeds: Iterable[int], tick: Tick) -> Rollouts:
    """Run the stochastic policy for one episode a seed.

    Args:
        policy: acts with its noise.
        env: the task's environment.
        seeds: each fixes the initial state and the noise of its episode, whatever the policy.
        tick: called before each episode.
    """
    observations, returns, success_any, success_last = [], [], [], []
    for seed in seeds:
        tick("rolling out")
        # The environment draws its initial state from default_rng(seed); the noise must not repeat that stream.
        noise = np.random.default_rng((seed, 1))
        obs_D, _ = env.reset(seed=seed)
        total, successes, done = 0.0, [], False
        while not done:
            observations.append(obs_D)
            obs_D, reward, terminated, truncated, info = env.step(policy.act(obs_D, noise))
            total += float(reward)
            successes.append(bool(info["success"]))
            done = terminated or truncated
        returns.append(total)
        success_any.append(any(successes))
        success_last.append(successes[-1])
    return Rollouts(
        observations=np.array(observations, dtype=np.float64),
        returns=np.array(returns),
        success_any=np.array(success_any),
        success_last=np.array(success_last),
    )


class _Student:
    """The network in training, with the scalings that its first data fixed.

    Args:
        teacher: gives labels, noise and widths.
        obs_ND: (N, D) float64, the teacher's own states, raw units.
        settings: sizes and seed.
    """

    def __init__(self, teacher: Expert, obs_ND: Float64Array, settings: Settings) -> None:
        torch.manual_seed(settings.seed)
        self._teacher = teacher
        self._settings = settings
        self._batches = torch.Generator().manual_seed(settings.seed)
        labels_NA = teacher.mean(obs_ND)
        self._obs_shift_D = obs_ND.mean(0).astype(np.float32)
        self._obs_scale_D = (obs_ND.std(0) + 1e-3).astype(np.float32)
        self._action_shift_A = labels_NA.mean(0)
        self._action_scale_A = labels_NA.std(0) + np.float32(1e-3)
        hidden = settings.hidden
        self._net = nn.Sequential(
            nn.Linear(teacher.obs_dim, hidden),
            nn.Tanh(),
            nn.Linear(hidden, hidden),
            nn.Tanh(),
            nn.Linear(hidden, teacher.action_dim),
        )

    def train(self, obs_ND: Float64Array, steps: int, tick: Tick) -> None:
        """Fit the teacher's mean action on the given states.

        Args:
            obs_ND: (N, D) float64, raw units.
            steps: of Adam.
            tick: called before every thousandth step.
        """
        inputs_ND = torch.from_numpy(((obs_ND - self._obs_shift_D) / self._obs_scale_D).astype(np.float32))
        labels_NA = (self._teacher.mean(obs_ND) - self._action_shift_A) / self._action_scale_A
        targets_NA = torch.from_numpy(labels_NA)
        precision_A = torch.from_numpy(np.square(self._action_scale_A / self._teacher.std_A))
        settings = self._settings
        optimiser = torch.optim.Adam(self._net.parameters(), lr=settings.learning_rate, fused=True)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps, settings.learning_rate / 100)
        for step in range(steps):
            if step % 1000 == 0:
                tick("training")
            rows = torch.randint(len(inputs_ND), (settings.batch,), generator=self._batches)
            error_BA = self._net(inputs_ND[rows]) - targets_NA[rows]
            loss = (precision_A * error_BA.square()).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()

    def tensors(self) -> dict[str, Float32Array]:
        """Return the expert's tensors, in the layout that `Expert` reads."""
        linear = [layer for layer in self._net if isinstance(layer, nn.Linear)]
        layers = {
            f"layers.{i}.{part}": getattr(layer, part).detach().numpy().copy()
            for i, layer in enumerate(linear)
            for part in ("weight", "bias")
        }
        return layers | {
            "obs_shift": self._obs_shift_D,
            "obs_scale": self._obs_scale_D,
            "action_shift": self._action_shift_A,
            "action_scale": self._action_scale_A,
            "log_std": np.log(self._teacher.std_A),
        }

    def expert(self) -> Expert:
        """Return the policy as it stands."""
        return Expert(self._teacher.name, self.tensors(), {})


def distil(teacher: Expert, env: gym.Env[Any, Any], settings: Settings, tick: Tick) -> dict[str, Float32Array]:
    """Train a student of the teacher on the states that the teacher and then the student itself visit.

    Args:
        teacher: the public expert; its mean is the label.
        env: the task's environment.
        settings: sizes and lengths.
        tick: called with a word on what is being done, `work(settings)` times together with `check`.

    Returns:
        The student's tensors, in the layout that `Expert` reads.
    """
    seen = roll_out(teacher, env, range(settings.first_episodes), tick).observations
    student = _Student(teacher, seen, settings)
    student.train(seen, settings.round_steps, tick)
    for index in range(settings.rounds):
        first = settings.first_episodes + index * settings.round_episodes
        visited = roll_out(student.expert(), env, range(first, first + settings.round_episodes), tick)
        seen = np.concatenate([seen, visited.observations])
        last = index == settings.rounds - 1
        student.train(seen, settings.final_steps if last else settings.round_steps, tick)
    return student.tensors()


def check(teacher: Expert, student: Expert, env: gym.Env[Any, Any], settings: Settings, tick: Tick) -> Agreement:
    """Measure teacher and student on the checking seeds, both stochastic.

    Args:
        teacher: the public expert.
        student: the distilled one.
        env: the task's environment.
        settings: number of episodes.
        tick: called before each episode.
    """
    seeds = range(CHECKING_SEED, CHECKING_SEED + settings.check_episodes)
    original = roll_out(teacher, env, seeds, tick)
    own = roll_out(student, env, seeds, tick)
    difference = student.act(own.observations) - teacher.act(own.observations)
    return Agreement(
        original=Standing.of(original),
        student=Standing.of(own),
        episodes=settings.check_episodes,
        first_seed=CHECKING_SEED,
        mean_action_rmse=float(np.sqrt(np.square(difference).mean())),
        simulator=simulator_versions(),
    )


def work(settings: Settings) -> int:
    """Return how often the progress ticks for one task."""
    episodes = settings.first_episodes + settings.rounds * settings.round_episodes + 2 * settings.check_episodes
    steps = [settings.round_steps] * settings.rounds + [settings.final_steps]
    return episodes + sum(-(-count // 1000) for count in steps)
