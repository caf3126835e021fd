import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from mcnn_ray.errors import ConfigError, SimulationError
from mcnn_ray.rollout.episode import run_episodes
from mcnn_ray.rollout.records import write_rollouts
from mcnn_ray.rollout.video import save_telling_videos, save_video, telling_rollouts
from mcnn_ray.tasks.catalogue import CATALOGUE
from mcnn_ray.tasks.environments import make_environment
from tests.rollout.test_episode import nearest_policy

PEN = CATALOGUE["pen-expert-v1"]


@pytest.fixture(scope="module")
def rollouts(pen_demonstrations):
    envs = [make_environment(PEN) for _ in range(4)]
    return run_episodes(nearest_policy(pen_demonstrations), PEN, envs, [0, 1, 2, 3], "m")


def brief(rollout):
    """The first steps of it: drawing takes long without a GPU."""
    return replace(rollout, actions_TA=rollout.actions_TA[:16])


@pytest.fixture(scope="module")
def drawing(rollouts, tmp_path_factory):
    try:
        save_video(replace(rollouts[0], actions_TA=rollouts[0].actions_TA[:1]), tmp_path_factory.mktemp("v") / "v.mp4")
    except SimulationError as error:
        pytest.skip(f"nothing can be drawn here: {error}")


def frames_of(path):
    import imageio.v2

    with imageio.v2.get_reader(path) as reader:
        return reader.get_meta_data(), np.array(list(reader.iter_data()))


def test_video_shows_the_episode_in_real_time(rollouts, drawing, tmp_path):
    path = tmp_path / "new" / "pen.mp4"
    save_video(brief(rollouts[0]), path)
    facts, frames_THWC = frames_of(path)
    steps_per_s = make_environment(PEN).metadata["render_fps"]
    assert frames_THWC.shape == (5, 480, 480, 3)
    assert facts["fps"] * 16 / (len(frames_THWC) - 1) == steps_per_s
    assert frames_THWC.std() > 20
    assert np.abs(frames_THWC[-1].astype(int) - frames_THWC[0]).max() > 50  # something moved
    assert [file.name for file in path.parent.iterdir()] == ["pen.mp4"]


def test_drawing_does_not_change_the_episode(rollouts, drawing, tmp_path):
    assert save_video(rollouts[0], tmp_path / "pen.mp4").same(rollouts[0])


def test_best_median_and_worst_are_named_with_their_seeds(rollouts, drawing, tmp_path):
    told = []
    found = save_telling_videos([*map(brief, rollouts)], tmp_path, lambda *shown: told.append(shown))
    ranked = sorted(rollouts, key=lambda rollout: rollout.record.episode_return)
    assert {name: path.name for name, path in found.items()} == {
        name: f"{name}-seed-{ranked[place].record.episode_seed}.mp4"
        for name, place in (("best", 3), ("worst", 0), ("median", 1))
    }
    assert all(path.is_file() for path in found.values())
    assert told[-1] == ("videos", 3, 3)


def test_fewer_episodes_are_not_shown_twice(rollouts):
    assert list(telling_rollouts(rollouts[:1])) == ["best"]
    assert list(telling_rollouts(rollouts[:2])) == ["best", "worst"]


def test_video_under_another_suffix_is_refused(rollouts, tmp_path):
    with pytest.raises(ConfigError, match="name a file that ends in .mp4"):
        save_video(rollouts[0], tmp_path / "pen.gif")


@pytest.mark.parametrize(
    "setting", [{"MUJOCO_EGL_DEVICE_ID": "99"}, {"PYOPENGL_PLATFORM": "osmesa"}], ids=["no device", "other library"]
)
def test_machine_that_cannot_draw_is_told_what_to_install_in_one_sentence(rollouts, tmp_path, setting):
    write_rollouts(tmp_path / "episodes.parquet", rollouts[:1])
    environment = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "MUJOCO_GL")}
    command = [sys.executable, "-m", "mcnn_ray", "replay", "episodes.parquet", "--video", "pen.mp4"]
    ended = subprocess.run(command, cwd=tmp_path, env={**environment, **setting}, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    told = " ".join(ended.stderr.split())
    assert "error: pen-expert-v1 cannot be drawn on this machine" in told
    assert "apt-get install libegl1 libgl1-mesa-dri" in told
    assert [file.name for file in tmp_path.iterdir()] == ["episodes.parquet"]
