"""An explained episode as one HTML page that opens offline, and as JSON.

Shapes: T steps, D observation numbers.
"""

from __future__ import annotations

import base64
import html
import json
from collections import Counter
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from mcnn_ray.explain import EpisodeExplained, Nearest
from mcnn_ray.explain_frames import Frames
from mcnn_ray.tasks.adroit import observation_names

__all__ = ["compare", "explanation_json", "explanation_page", "most_used"]

_COMPARED = 12  # observation numbers a step, those that differ most
_BINS = 40
_QUALITY = 80  # of JPEG pictures
_WIDEST = 480  # pixels of a picture


def explanation_json(shown: EpisodeExplained) -> dict[str, Any]:
    """Return an explained episode as JSON values: facts of it, and lists over its steps."""
    record, nearest = shown.rollout.record, shown.nearest
    found: dict[str, Any] = {
        "task": record.task,
        "method": shown.method,
        "member": record.member,
        "episode_seed": record.episode_seed,
        "return": record.episode_return,
        "score": record.normalised_score,
        "success": record.success,
        "length": record.length,
        "notes": list(shown.notes),
        "nearest": None,
    }
    if nearest is None:
        return found
    found["nearest"] = {
        "what": nearest.what,
        "known": nearest.known,
        "index": nearest.index_T.tolist(),
        "places": nearest.places_T,
        "distance": _rounded(nearest.distance_T),
        "weight": None if nearest.weight_T is None else _rounded(nearest.weight_T),
        "departure": _rounded(nearest.departure_T),
        "percentile": None if nearest.spread is None else _rounded(nearest.spread.percentiles(nearest.distance_T)),
        "compared": [compare(shown, nearest, step) for step in range(len(nearest.index_T))],
        "spread": _spread(nearest),
    }
    return found


def explanation_page(shown: EpisodeExplained, frames: Frames | None) -> str:
    """Return an explained episode as an HTML page: it holds all that it shows, and asks no server for anything.

    Args:
        shown: the episode.
        frames: its pictures, or None.
    """
    data = explanation_json(shown)
    data["frames"] = (
        None
        if frames is None
        else {
            "steps": frames.steps,
            "now": [_picture(frame) for frame in frames.now],
            "memory": [None if frame is None else _picture(frame) for frame in frames.memory],
        }
    )
    if frames is not None and frames.note:
        data["notes"].append(frames.note)
    template = resources.files("mcnn_ray").joinpath("assets/explain.html").read_text(encoding="utf-8")
    # Inside a script element only "<" could end it; as an escape it is the same JSON.
    text = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    title = html.escape(f"{data['method']} on {data['task']}, episode seed {data['episode_seed']}")
    return template.replace("@TITLE@", title).replace("@DATA@", text)


def compare(shown: EpisodeExplained, nearest: Nearest, step: int) -> list[tuple[str, float, float, float]]:
    """Return the observation numbers of a step that differ most from the nearest known state, largest first.

    Args:
        shown: the episode.
        nearest: what is known.
        step: of it.

    Returns:
        Of each its name, its value, that of the known state, and the difference in standardised units.
    """
    names, differences_D = _names(shown), nearest.differences_TD[step]
    places = np.argsort(-np.abs(differences_D), kind="stable")[:_COMPARED]
    rows_3K = shown.observations_TD[step, places], nearest.observations_TD[step, places], differences_D[places]
    return [
        (names[d], float(f"{now:.4g}"), float(f"{then:.4g}"), float(f"{apart:.4g}"))
        for d, now, then, apart in zip(places, *rows_3K, strict=True)
    ]


def most_used(nearest: Nearest, count: int) -> list[tuple[int, int]]:
    """Return the memories that drove most steps, each with their number."""
    return Counter(nearest.index_T.tolist()).most_common(count)


def _names(shown: EpisodeExplained) -> list[str]:
    width = shown.observations_TD.shape[1]
    names = observation_names(shown.task.environment)
    what = "number" if shown.images_TX is None else "embedding"
    return names if names is not None and len(names) == width else [f"{what} {d}" for d in range(width)]


def _rounded(values: npt.NDArray[Any]) -> list[float]:
    return [float(f"{value:.5g}") for value in values.tolist()]


def _spread(nearest: Nearest) -> dict[str, Any] | None:
    spread = nearest.spread
    if spread is None:
        return None
    top = float(max(spread.distance_N[-1], nearest.distance_T.max())) or 1.0
    edges = np.linspace(0.0, top, _BINS + 1)
    return {
        "name": spread.name,
        "held_out": spread.held_out,
        "episodes": spread.episodes,
        "steps": len(spread.distance_N),
        "threshold": spread.threshold,
        "quantiles": _rounded(np.percentile(spread.distance_N, [5, 50, 95, 100])),
        "edges": _rounded(edges),
        "shares": _rounded(np.histogram(spread.distance_N, edges)[0] / len(spread.distance_N)),
        "episode_shares": _rounded(np.histogram(nearest.distance_T, edges)[0] / len(nearest.distance_T)),
    }


def _picture(frame: npt.NDArray[np.uint8]) -> str:
    import imageio.v3

    stride = -(-frame.shape[1] // _WIDEST)
    encoded = imageio.v3.imwrite("<bytes>", frame[::stride, ::stride], extension=".jpg", quality=_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(encoded).decode()}"
