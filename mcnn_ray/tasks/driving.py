"""The driving environments' Gymnasium ids. Nothing of CARLA's is imported before one of them is reset."""

from __future__ import annotations

import gymnasium as gym

from mcnn_ray.carla.scenarios import SCENARIOS

__all__ = ["register_driving"]


def register_driving() -> None:
    """Register `DrivingLane-v0`, `DrivingTown-v0`, and `...Strict-v0` of both, which keep D4RL's faults."""
    for name, scenario in SCENARIOS.items():
        for suffix, strict in (("", False), ("Strict", True)):
            env_id = f"Driving{name.capitalize()}{suffix}-v0"
            if env_id not in gym.registry:
                gym.register(
                    env_id,
                    entry_point="mcnn_ray.carla.environment:DrivingEnv",
                    max_episode_steps=scenario.horizon,
                    kwargs={"scenario": name, "strict": strict},
                )
