"""What demonstrations must be like before anything is learned from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from gymnasium.spaces import Box

from mcnn_ray.data.demonstrations import Demonstrations
from mcnn_ray.errors import ConfigError, DatasetError
from mcnn_ray.tasks.catalogue import Task
from mcnn_ray.tasks.environments import make_environment

if TYPE_CHECKING:
    from mcnn_ray.encoders.encoder import Encoder

__all__ = ["check_demonstrations"]


def check_demonstrations(
    demonstrations: Demonstrations,
    task: Task,
    *,
    clip_actions: bool = False,
    constant_columns: Literal["refuse", "ignore"] = "refuse",
    min_episodes: int = 2,
    encoder: Encoder | None = None,
) -> tuple[Demonstrations, Box]:
    """Hold demonstrations against a task's environment and against what can be learned from.

    Args:
        demonstrations: to be checked.
        task: whose environment they must fit.
        clip_actions: clip actions outside the environment's bounds instead of refusing them.
        constant_columns: what to do about observation columns that never change. A policy ignores them; since such a
            column may change in a rollout, that has to be asked for.
        min_episodes: fewer are refused: one episode shows a single start only.
        encoder: that the observations were seen through, or None. Its outputs that never change are always ignored:
            nobody can have chosen them.

    Returns:
        The demonstrations, with actions clipped if asked; the environment's action space.

    Raises:
        DatasetError: they do not fit, or cannot be learned from.
        ConfigError: the environment cannot be used.
    """
    env = make_environment(task)
    space = env.action_space
    assert isinstance(space, Box)  # make_environment sees to it
    width = int(np.prod(env.observation_space.shape or (0,)))
    env.close()
    source = demonstrations.source
    if encoder is not None:
        if width != encoder.inputs:
            raise ConfigError(
                f"the environment of {task.id} has {width} observation numbers, the encoder {encoder.name} takes "
                f"images of {encoder.inputs}; leave --encoder out"
            )
        width, constant_columns = encoder.outputs, "ignore"
    if demonstrations.observations_ND.shape[1] != width:
        raise DatasetError(
            f"{source} has {demonstrations.observations_ND.shape[1]} observation numbers, the environment of "
            f"{task.id} has {width}; it was recorded for another task"
        )
    if demonstrations.episodes < min_episodes:
        raise DatasetError(
            f"{source} has {demonstrations.episodes} episode, at least {min_episodes} are needed; record more, or pass "
            "--min-episodes 1 to learn from a single one"
        )
    obs_ND = demonstrations.observations_ND
    constant = np.flatnonzero(obs_ND.max(0) == obs_ND.min(0))
    if len(constant) == width:
        raise DatasetError(f"{source}: no observation column ever changes, so there is nothing to learn from")
    if len(constant) and constant_columns == "refuse":
        shown = ", ".join(map(str, constant[:8])) + (", ..." if len(constant) > 8 else "")
        raise DatasetError(
            f"{source}: {len(constant)} of {width} observation columns never change ({shown}); distances cannot be "
            "scaled by them; pass --constant-columns ignore to leave them out"
        )
    return demonstrations.check_actions(space.low, space.high, clip=clip_actions), space
