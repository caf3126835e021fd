"""Videos of recorded episodes, drawn while their actions are given to the simulator again."""

from __future__ import annotations

import ctypes.util
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from mcnn_ray.artifacts import write_bytes
from mcnn_ray.errors import ConfigError, SimulationError
from mcnn_ray.rollout.episode import Rollout
from mcnn_ray.rollout.replay import Replay, replay_steps
from mcnn_ray.tasks.catalogue import find_task
from mcnn_ray.tasks.environments import make_environment

__all__ = ["SUFFIX", "draw", "save_telling_videos", "save_video", "telling_rollouts"]

logger = logging.getLogger(__name__)

SUFFIX = ".mp4"
# Of 100 steps a second this draws every fourth: without a GPU a frame takes a tenth of a second and more.
_FEWEST_FPS = 25
_UNKNOWN_FPS = 30
_MEND = (
    "MuJoCo draws with OpenGL: without a display it takes EGL (Debian: apt-get install libegl1 libgl1-mesa-dri), or "
    "OSMesa (apt-get install libosmesa6, and MUJOCO_GL=osmesa)"
)


def save_video(rollout: Rollout, path: Path) -> Replay:
    """Replay an episode and write it as a video in real time, whole or not at all.

    The frame rate is the environment's `render_fps`, or the part of it that every second, third, ... step makes, at
    least 25 a second.

    Args:
        rollout: to replay.
        path: of the video, H.264 in an `.mp4` file; parents are made.

    Returns:
        What came of the actions: the video shows the recorded episode if this is the same.

    Raises:
        ConfigError: the path has another suffix, or the task is not known here.
        SimulationError: the environment fails, or cannot be drawn on this machine.
    """
    if path.suffix != SUFFIX:
        raise ConfigError(f"a video cannot be written to {path}; name a file that ends in {SUFFIX}")
    # Imported here: it takes a second, and most commands draw nothing.
    import imageio.v2

    env = make_environment(find_task(rollout.record.task), render_mode="rgb_array")
    steps_per_s = float(env.metadata.get("render_fps") or _UNKNOWN_FPS)
    stride = max(1, int(steps_per_s // _FEWEST_FPS))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"video{SUFFIX}")
        try:
            with imageio.v2.get_writer(file, fps=steps_per_s / stride, macro_block_size=2) as video:
                writer: Any = video  # its stub lacks append_data
                for again in replay_steps(rollout, env):
                    if again.length % stride == 0:
                        writer.append_data(draw(env, rollout.record.task))
        finally:
            env.close()
        write_bytes(path, file.read_bytes())
    return again


def draw(env: gym.Env[Any, Any], task: str) -> npt.NDArray[np.uint8]:
    """Return what an environment looks like, (H, W, 3).

    Args:
        env: made with the render mode `rgb_array`.
        task: its id, for errors.

    Raises:
        SimulationError: it cannot be drawn on this machine; the message says what to install.
    """
    _choose_opengl()
    try:
        frame = env.render()
    except Exception as error:
        _drop_half_made(error)
        cause = " ".join(str(error).split()) or type(error).__name__
        raise SimulationError(f"{task} cannot be drawn on this machine ({cause[:160]}); {_MEND}") from error
    if not isinstance(frame, np.ndarray) or frame.ndim != 3:
        raise SimulationError(
            f"{task} cannot be drawn: its render() gives {type(frame).__name__}, expected an RGB array"
        )
    return frame


def telling_rollouts(rollouts: Sequence[Rollout]) -> dict[str, Rollout]:
    """Return the `best`, `worst` and `median` episode by return, without repeating one where there are fewer.

    Of an even number the lower of the two in the middle is the median.
    """
    ranked = sorted(rollouts, key=lambda rollout: rollout.record.episode_return)
    found: dict[str, Rollout] = {}
    for name, place in (("best", -1), ("worst", 0), ("median", (len(ranked) - 1) // 2)):
        if all(ranked[place] is not other for other in found.values()):
            found[name] = ranked[place]
    return found


def save_telling_videos(
    rollouts: Sequence[Rollout], folder: Path, tell: Callable[[str, float, float], None]
) -> dict[str, Path]:
    """Write videos of the best, the median and the worst episode, named after what they are and their seed.

    Args:
        rollouts: to choose from.
        folder: for the videos; made if need be.
        tell: told of progress.

    Returns:
        The files by `best`, `worst` and `median`.

    Raises:
        SimulationError: the environment fails, or cannot be drawn on this machine.
    """
    chosen = telling_rollouts(rollouts)
    paths = {name: folder / f"{name}-seed-{ro.record.episode_seed}{SUFFIX}" for name, ro in chosen.items()}
    for done, (name, rollout) in enumerate(chosen.items()):
        tell("videos", done, len(chosen))
        if not save_video(rollout, paths[name]).same(rollout):
            logger.warning("%s shows another episode than the one recorded: other versions or processor", paths[name])
    tell("videos", len(chosen), len(chosen))
    return paths


def _choose_opengl() -> None:
    """Name an OpenGL library that needs no display, where there is none and the user names none.

    The one chosen stays for the process: PyOpenGL cannot change it once it is loaded.
    """
    # Gymnasium reads the variable when it draws first. Were it set before MuJoCo is imported, a library that does not
    # work would keep MuJoCo itself from being imported.
    if sys.platform == "linux" and not os.environ.get("DISPLAY") and not os.environ.get("MUJOCO_GL"):
        only_osmesa = ctypes.util.find_library("EGL") is None and ctypes.util.find_library("OSMesa") is not None
        os.environ["MUJOCO_GL"] = "osmesa" if only_osmesa else "egl"


def _drop_half_made(error: BaseException) -> None:
    """Let go of the half-made viewers that a traceback holds; their finalizers fail and would print that."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
    try:
        while error.__context__ is not None:
            traceback.clear_frames(error.__traceback__)
            error = error.__context__
        traceback.clear_frames(error.__traceback__)
    finally:
        sys.unraisablehook = hook
