"""`mcnn replay`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mcnn_ray.terminal import AsJson, TrustedModule, print_facts, print_json

__all__ = ["replay"]


def replay(
    record: Annotated[Path, typer.Argument(help="Parquet file of episodes, e.g. members/ID/episodes.parquet.")],
    episode_seed: Annotated[int | None, typer.Option("--episode-seed", help="Of the episode.")] = None,
    video: Annotated[Path | None, typer.Option("--video", help="MP4 file to write.")] = None,
    trust_module: TrustedModule = None,
    as_json: AsJson = False,
) -> None:
    """Run a recorded episode again with its actions; ends with status 1 if it earns something else.

    Example: mcnn replay runs/quickstart/members/0123456789ab/episodes.parquet --episode-seed 1000003 --video door.mp4
    """
    from mcnn_ray.rollout.records import read_rollout
    from mcnn_ray.rollout.replay import check_same
    from mcnn_ray.rollout.replay import replay as run_again
    from mcnn_ray.rollout.video import save_video
    from mcnn_ray.tasks.catalogue import find_recorded_task

    rollout = read_rollout(record, episode_seed)
    find_recorded_task(rollout.record.task, trust_module, record)
    again = run_again(rollout) if video is None else save_video(rollout, video)
    facts = {
        "task": rollout.record.task,
        "episode_seed": rollout.record.episode_seed,
        "recorded_return": rollout.record.episode_return,
        "return": again.episode_return,
        "recorded_length": rollout.record.length,
        "length": again.length,
        "recorded_success": rollout.record.success,
        "success": again.success,
        "same": again.same(rollout),
        **({} if video is None else {"video": str(video)}),
    }
    (print_json if as_json else print_facts)(facts)
    check_same(again, rollout)
