"""D4RL's reward in the installed Adroit environments.

D4RL pays -0.1 times the distance between palm and object in door, hammer and relocate. Some versions of
gymnasium-robotics pay +0.1 (fixed upstream in Gymnasium-Robotics PR 220). Which sign the installed environment has is
measured on it, not inferred from its version.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from mcnn_ray.errors import SimulationError

__all__ = ["D4RLReward", "hand_to_object_coefficient", "observation_names"]

# Palm minus object, from each environment's observation (gymnasium-robotics, adroit_hand/adroit_*.py, _get_obs).
_PALM_TO_OBJECT: dict[str, Callable[[npt.NDArray[Any]], npt.NDArray[Any]]] = {
    "AdroitHandDoor": lambda obs: obs[35:38],
    "AdroitHandHammer": lambda obs: obs[33:36] - obs[36:39],
    "AdroitHandRelocate": lambda obs: obs[30:33],
}
_D4RL_COEFFICIENT = -0.1

# What observations hold, in order: joints of the arm and the hand, then the task's own (the same functions).
_HAND = (
    "WRJ1 WRJ0 FFJ3 FFJ2 FFJ1 FFJ0 MFJ3 MFJ2 MFJ1 MFJ0 RFJ3 RFJ2 RFJ1 RFJ0 LFJ4 LFJ3 LFJ2 LFJ1 LFJ0 "
    "THJ4 THJ3 THJ2 THJ1 THJ0"
)
_ARM = {"AdroitHandDoor": "ARRx ARRy ARRz ", "AdroitHandHammer": "ARRx ARRy ", "AdroitHandPen": ""}
_ARM["AdroitHandRelocate"] = "ARTx ARTy ARTz ARRx ARRy ARRz "
_OTHERS = {
    "AdroitHandDoor": ("latch", "door hinge", "palm/", "handle/", "palm - handle/", "door open"),
    "AdroitHandHammer": (
        *(
            "nail",
            "hammer velocity/",
            "hammer rotation velocity/",
            "palm/",
            "hammer/",
            "hammer rotation/",
            "nail place/",
        ),
        "nail impact",
    ),
    "AdroitHandPen": (
        *("pen/", "pen velocity/", "pen rotation velocity/", "pen direction/", "target direction/"),
        *("pen - target/", "pen - target direction/"),
    ),
    "AdroitHandRelocate": ("palm - ball/", "palm - target/", "ball - target/"),
}


def observation_names(family: str) -> list[str] | None:
    """Return a name for each observation number of an Adroit environment; None for other environments.

    Args:
        family: name without version, e.g. `AdroitHandDoor`.
    """
    if family not in _ARM:
        return None
    # A slash stands for three numbers along x, y and z.
    others = [name.replace("/", f" {axis}") for name in _OTHERS[family] for axis in ("xyz" if "/" in name else "x")]
    return [*(f"joint {name}" for name in (_ARM[family] + _HAND).split()), *others]


def hand_to_object_coefficient(env: gym.Env[Any, Any], family: str) -> float:
    """Measure what the environment pays per metre between palm and object.

    The hand is put at two places with everything at rest and no physics step between, so that the distance is the only
    term of the reward that differs.

    Args:
        env: an Adroit environment; it is reset.
        family: `AdroitHandDoor`, `AdroitHandHammer` or `AdroitHandRelocate`.

    Returns:
        Reward per metre: -0.1 is D4RL's.
    """
    inner: Any = env.unwrapped
    env.reset(seed=0)
    rest = inner.data.qpos.copy()
    frame_skip, inner.frame_skip = inner.frame_skip, 0
    try:
        rewards, distances = [], []
        for shift in (0.0, 0.1):  # of the arm's first joint: metres in door and relocate, radians in hammer
            qpos = rest.copy()
            qpos[0] += shift
            inner.set_state(qpos, np.zeros_like(inner.data.qvel))
            obs, reward, *_ = inner.step(np.zeros(inner.action_space.shape, dtype=np.float32))
            rewards.append(float(np.squeeze(reward)))
            distances.append(float(np.linalg.norm(_PALM_TO_OBJECT[family](obs))))
    finally:
        inner.frame_skip = frame_skip
    return (rewards[1] - rewards[0]) / (distances[1] - distances[0])


class D4RLReward(gym.Wrapper[Any, Any, Any, Any]):
    """Gives D4RL's reward, whatever sign of the hand-to-object term the wrapped Adroit environment has.

    Args:
        env: an Adroit environment; it is reset once to be measured.
        family: environment id without its version.

    Raises:
        SimulationError: the environment pays neither -0.1 nor +0.1 per metre, so no correction is known.
    """

    def __init__(self, env: gym.Env[Any, Any], family: str) -> None:
        super().__init__(env)
        self._palm_to_object = _PALM_TO_OBJECT.get(family)
        self.correction = 0.0  # reward per metre that is added
        if self._palm_to_object is None:
            return  # pen has no such term
        measured = hand_to_object_coefficient(env, family)
        if not np.isclose(abs(measured), abs(_D4RL_COEFFICIENT), atol=1e-6):
            raise SimulationError(
                f"{family} pays {measured:.4g} per metre between palm and object; D4RL pays -0.1 and the known fault "
                "+0.1, so its reward cannot be corrected; use gymnasium-robotics 1.4.2"
            )
        self.correction = 0.0 if measured < 0 else 2.0 * _D4RL_COEFFICIENT

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the environment; the reward is D4RL's, as a plain float."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        value = np.asarray(reward).item()  # door's is an array of one number
        if self.correction and self._palm_to_object is not None:
            # A step takes 0.2 ms, of which numpy's norm of three numbers would be 3 %.
            value += self.correction * math.hypot(*self._palm_to_object(obs).tolist())
        return obs, value, terminated, truncated, info
