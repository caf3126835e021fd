"""A recorded episode run again from its seed with its actions: what it earned then, it must earn now."""

from __future__ import annotations

from dataclasses import dataclass

from mcnn_ray.rollout.episode import FAULTS, Rollout, environment_fault
from mcnn_ray.tasks.catalogue import find_task
from mcnn_ray.tasks.environments import make_environment, simulator_versions

__all__ = ["Replay", "replay"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What came of the actions this time.

    Attributes:
        episode_return: sum of rewards, raw units.
        success: whether the environment reported it at any step; None where it never does.
        length: steps taken until the environment ended the episode, or the actions did.
        other_versions: recorded and installed version of each package that differs.
    """

    episode_return: float
    success: bool | None
    length: int
    other_versions: dict[str, tuple[str, str]]

    def same(self, rollout: Rollout) -> bool:
        """Tell whether return, success and length are those of the record, to the last bit."""
        record = rollout.record
        return (self.episode_return, self.success, self.length) == (
            record.episode_return,
            record.success,
            record.length,
        )


def replay(rollout: Rollout) -> Replay:
    """Give the recorded actions to the task's environment again.

    Raises:
        ConfigError: the task is not known here.
        SimulationError: the environment fails.
    """
    record = rollout.record
    env = make_environment(find_task(record.task))
    total, length, successes = 0.0, 0, []
    try:
        env.reset(seed=record.episode_seed)
        for action_A in rollout.actions_TA:
            _, reward, terminated, truncated, info = env.step(action_A)
            total += float(reward)
            length += 1
            if "success" in info:
                successes.append(bool(info["success"]))
            if terminated or truncated:
                break
    except FAULTS as error:
        raise environment_fault(record.task, record.episode_seed, length, error) from error
    finally:
        env.close()
    installed = simulator_versions()
    return Replay(
        episode_return=total,
        success=any(successes) if successes else None,
        length=length,
        other_versions={
            name: (recorded, installed.get(name, "none"))
            for name, recorded in record.versions.items()
            if installed.get(name) != recorded
        },
    )
