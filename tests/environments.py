"""Environments that fail as users' own may: named `tests.environments:ID` in a task."""

import os
import signal

import gymnasium as gym
import numpy as np

from mcnn_ray.data.demonstrations import Demonstrations
from mcnn_ray.data.minari_store import write_minari
from mcnn_ray.rollout.episode import EVALUATION_SEED

MORTAL_SEED = EVALUATION_SEED + 1


class Drift(gym.Env):
    """A point that drifts for five steps."""

    observation_space = gym.spaces.Box(-100, 100, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.age = self.np_random.uniform(-1, 1, 2), 0
        return self.place.astype(np.float32), {}

    def step(self, action):
        self.place, self.age = self.place + np.array([float(action[0]), 0.1]), self.age + 1
        return self.place.astype(np.float32), -abs(self.place[0]), False, self.age >= 5, {}


class Uneven(Drift):
    """Ends after as many steps as its seed leaves over 4, and 3."""

    def reset(self, *, seed=None, options=None):
        self.limit = 3 + seed % 4
        return super().reset(seed=seed, options=options)

    def step(self, action):
        obs, reward, *_ = super().step(action)
        return obs, reward, self.age >= self.limit, False, {}


class Mortal(Drift):
    """Takes its process with it on one of the starts that sweeps report on."""

    def reset(self, *, seed=None, options=None):
        if seed == MORTAL_SEED:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().reset(seed=seed, options=options)


def record_drift(dataset):
    """Write demonstrations of made numbers as a Minari dataset."""
    rng = np.random.default_rng(0)
    demonstrations = Demonstrations(
        observations_ND=rng.normal(size=(50, 2)).astype(np.float32),
        actions_NA=rng.uniform(-1, 1, (50, 1)).astype(np.float32),
        rewards_N=rng.normal(size=50).astype(np.float32),
        offsets=np.arange(0, 51, 5),
        source="made",
    )
    write_minari(demonstrations, dataset, gym.make("Drift-v0"), description="for tests")


class Fragile(Drift):
    """Raises at a step of the first start that sweeps report on."""

    def reset(self, *, seed=None, options=None):
        self.breaks = seed == EVALUATION_SEED
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self.breaks and self.age == 3:
            raise RuntimeError("the gripper is stuck")
        return super().step(action)


gym.register("Fragile-v0", "tests.environments:Fragile")
gym.register("Drift-v0", "tests.environments:Drift")
gym.register("Mortal-v0", "tests.environments:Mortal")


class Glance(gym.Env):
    """A bright column in an image of 48 x 48, to be moved to the middle."""

    observation_space = gym.spaces.Box(0, 1, (48, 48, 3), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.age = self.np_random.uniform(0, 47), 0
        return self._image(), {}

    def step(self, action):
        self.place, self.age = float(np.clip(self.place + 12 * float(action[0]), 0, 47)), self.age + 1
        return self._image(), -abs(self.place - 24) / 24, False, self.age >= 6, {}

    def _image(self):
        image = np.full((48, 48, 3), 0.2, np.float32)
        image[10:, max(0, round(self.place) - 3) : round(self.place) + 4] = (1.0, 0.6, 0.4)
        return image


def glance_demonstrations(episodes=12):
    """Demonstrations of someone who moves the column straight to the middle; from seed 0 on."""
    env, images, actions, rewards = gym.make("Glance-v0"), [], [], []
    for seed in range(episodes):
        obs, _ = env.reset(seed=seed)
        for _ in range(6):
            images.append(obs.reshape(-1))
            actions.append([np.clip((24 - env.unwrapped.place) / 12, -1, 1)])
            obs, reward, *_ = env.step(actions[-1])
            rewards.append(reward)
    return Demonstrations(
        observations_ND=np.stack(images),
        actions_NA=np.array(actions, np.float32),
        rewards_N=np.array(rewards, np.float32),
        offsets=np.arange(0, 6 * episodes + 1, 6),
        source="glances",
    )


gym.register("Glance-v0", "tests.environments:Glance")
