"""Pictures of an episode beside pictures of the demonstrated states that drove it.

Shapes: K steps that are drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from mcnn_ray.data.demonstrations import Demonstrations
from mcnn_ray.data.minari_store import image_bytes
from mcnn_ray.encoders.networks import IMAGE_SHAPE
from mcnn_ray.explain import EpisodeExplained
from mcnn_ray.rollout.replay import see_again
from mcnn_ray.rollout.video import draw
from mcnn_ray.tasks.catalogue import Task
from mcnn_ray.tasks.environments import make_environment

__all__ = ["Frames", "frames_of"]

Frame = npt.NDArray[np.uint8]

_ENLARGED = 5  # times, of images that policies see


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames:
    """Pictures of an episode and of its memories.

    Attributes:
        steps: (K,) steps that are drawn.
        now: of each, the episode.
        memory: of each, the memory where it was recorded; None where its simulator state is not known.
        note: why something is missing, or empty.
    """

    steps: list[int]
    now: list[Frame]
    memory: list[Frame | None]
    note: str = ""


def frames_of(
    shown: EpisodeExplained,
    count: int,
    progress: Callable[[int, int], None] | None = None,
) -> Frames:
    """Draw an episode and, where they can be run again, the demonstrated states that its memories are.

    Where observations are images, those are shown: what the policy saw, and what it remembers to have seen.

    A demonstration that was recorded here is reset with its seed and given its actions; the memory is drawn only if the
    environment then shows its very numbers.

    Args:
        shown: the episode.
        count: how many steps are drawn, evenly spaced, at least 1.
        progress: called with the pictures of the episode drawn and to draw.

    Raises:
        SimulationError: the environment fails, or cannot be drawn on this machine.
    """
    steps = np.unique(np.linspace(0, len(shown.observations_TD) - 1, count).round().astype(int)).tolist()
    if shown.images_TX is not None:
        return _images(shown, shown.images_TX, steps)
    env = make_environment(shown.task, render_mode="rgb_array")
    now: dict[int, Frame] = {}

    def each(step: int) -> None:
        if step in steps:
            now[step] = draw(env, shown.task.id)
            if progress is not None:
                progress(len(now), len(steps))

    try:
        see_again(replace(shown.rollout, actions_TA=shown.rollout.actions_TA[: steps[-1]]), env, each)
        memory, note = _memory_frames(shown, env, steps)
    finally:
        env.close()
    return Frames(steps=steps, now=[now[step] for step in steps], memory=memory, note=note)


def _images(shown: EpisodeExplained, images_TX: npt.NDArray[np.float32], steps: list[int]) -> Frames:
    memory: list[Frame | None] = [None] * len(steps)
    if shown.nearest is not None and shown.nearest.places_T is not None and shown.learned is not None:
        recorded = shown.learned.recorded
        places = [shown.nearest.places_T[step] for step in steps]
        memory = [_image(recorded.observations_of(episode)[step]) for episode, step in places]
    return Frames(steps=steps, now=[_image(images_TX[step]) for step in steps], memory=memory)


def _image(flat_X: npt.NDArray[np.float32]) -> Frame:
    """Return an image as a picture whose pixels can be told apart."""
    pixels = image_bytes(flat_X).reshape(IMAGE_SHAPE)
    return pixels.repeat(_ENLARGED, axis=0).repeat(_ENLARGED, axis=1)


def _memory_frames(shown: EpisodeExplained, env: gym.Env[Any, Any], steps: list[int]) -> tuple[list[Frame | None], str]:
    nearest, learned = shown.nearest, shown.learned
    if nearest is None or nearest.places_T is None or learned is None:
        return [None] * len(steps), ""
    seeds = _recorded_seeds(learned.whole)
    if seeds is None:
        return [None] * len(steps), (
            f"{learned.whole.source} does not tell from which seeds it was recorded, so its states cannot be drawn"
        )
    places = [nearest.places_T[step] for step in steps]
    drawn: dict[tuple[int, int], Frame] = {}
    for episode in sorted({episode for episode, _ in places}):
        wanted = {step for e, step in places if e == episode}
        drawn |= _demonstration_frames(learned.whole, env, shown.task, episode, seeds[episode], wanted)
    missing = len(set(places) - drawn.keys())
    note = f"{missing} states cannot be drawn: their demonstration does not repeat itself here" if missing else ""
    return [drawn.get(place) for place in places], note


def _demonstration_frames(
    data: Demonstrations, env: gym.Env[Any, Any], task: Task, episode: int, seed: int, steps: set[int]
) -> dict[tuple[int, int], Frame]:
    obs_TD = data.observations_of(episode)
    start = int(data.offsets[episode])
    found = {}
    obs, _ = env.reset(seed=seed)
    for step in range(max(steps) + 1):
        if not np.array_equal(np.asarray(obs, dtype=np.float32), obs_TD[step]):
            break
        if step in steps:
            found[episode, step] = draw(env, task.id)
        obs, *_ = env.step(data.actions_NA[start + step])
    return found


def _recorded_seeds(data: Demonstrations) -> list[int] | None:
    """Return the seed that each episode was reset with, as the provenance tells; None where it does not."""
    facts, episodes = data.provenance, data.episodes
    seeds = facts.get("episode_seeds")
    if seeds is None and isinstance(facts.get("seed"), int):
        left_out = set(facts.get("seeds_left_out", ()))
        first = facts["seed"]
        seeds = [seed for seed in range(first, first + episodes + len(left_out)) if seed not in left_out]
    if not isinstance(seeds, list) or len(seeds) < episodes or not all(isinstance(seed, int) for seed in seeds):
        return None
    return seeds
