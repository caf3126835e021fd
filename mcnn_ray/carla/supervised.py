"""An environment whose server is kept by a supervisor: leased for an episode, and another one after a failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym

from mcnn_ray.carla.lease import ServerLease
from mcnn_ray.carla.plan import ServerPlan, find_plan
from mcnn_ray.errors import ServerError

__all__ = ["SupervisedEnv", "supervised"]


def supervised(env: gym.Env[Any, Any]) -> SupervisedEnv:
    """Return a driving environment with the servers that the user's variables ask for; see `find_plan`.

    Raises:
        ConfigError: the variables name no servers that can be used.
    """
    scenario = env.unwrapped.scenario  # type: ignore[attr-defined]
    return SupervisedEnv(env, find_plan(scenario.town, scenario.lite_map))


class SupervisedEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Leases a server for each episode, which lives until `close`, or until this process ends.

    Args:
        env: a `DrivingEnv`, or one around it.
        plan: which server.
    """

    def __init__(self, env: gym.Env[Any, Any], plan: ServerPlan) -> None:
        super().__init__(env)
        self._lease = ServerLease(plan)
        self._served: tuple[str, int] | None = None  # address, and which start of the server there
        self._driving = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode, on a server that works.

        Raises:
            ServerStartError: there is none.
            ServerError: it failed.
        """
        self._end()
        served = self._lease.acquire()
        self._driving = True
        if served != self._served:
            self.env.close()
            self.env.unwrapped.server, self._served = served[0], served  # type: ignore[attr-defined]
        told: tuple[Any, dict[str, Any]] = self._watched(lambda: self.env.reset(seed=seed, options=options))
        return told

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step.

        Raises:
            ServerError: the server failed.
        """
        told: tuple[Any, Any, bool, bool, dict[str, Any]] = self._watched(lambda: self.env.step(action))
        if told[2] or told[3]:
            self._end()
        return told

    def close(self) -> None:
        """Close the environment and end its server."""
        self.env.close()
        self._lease.close()

    def _watched(self, act: Callable[[], Any]) -> Any:
        try:
            told = act()
        except ServerError as error:
            self._end(str(error))
            raise
        self._lease.beat()
        return told

    def _end(self, failed: str = "") -> None:
        if self._driving:
            self._driving = False
            self._lease.release(failed)
