"""Importing gymnasium-robotics, which prints, and fails where OpenGL does."""

from __future__ import annotations

import contextlib
import io
import os

import gymnasium as gym

from mcnn_ray.errors import SimulationError

__all__ = ["register_robotics"]


def register_robotics() -> None:
    """Register gymnasium-robotics' environments, without the notice it prints.

    Raises:
        SimulationError: it cannot be imported.
    """
    # On import 1.4.2 prints a notice about the Adroit rewards, which D4RLReward mends.
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            import gymnasium_robotics
    except Exception as error:  # whatever MuJoCo's binding of OpenGL raises: AttributeError, RuntimeError, ImportError
        backend = os.environ.get("MUJOCO_GL", "")
        if not backend:
            raise SimulationError(f"gymnasium-robotics cannot be imported ({error}); make setup") from error
        raise SimulationError(
            f"MuJoCo cannot load the OpenGL that MUJOCO_GL={backend} asks for ({error}); install it (Debian: apt-get "
            "install libosmesa6 for osmesa, libegl1 for egl), or unset MUJOCO_GL"
        ) from error
    gym.register_envs(gymnasium_robotics)
