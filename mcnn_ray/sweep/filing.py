"""Filing a sweep in MLflow beside its work: a thread of the driver sends what the sweep's folder holds.

Learning curves lie in checkpoints and evaluations in files before they are sent, so a server that is slow or away holds
nothing up and loses nothing: what it lacks is read again and sent when it answers, by this start or the next.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from mcnn_ray.artifacts import read_json
from mcnn_ray.errors import McnnError, TrackingError
from mcnn_ray.member import Member
from mcnn_ray.sweep.learning_curves import read_evaluations
from mcnn_ray.sweep.packs import curve_points
from mcnn_ray.sweep.plan import SweepPlan
from mcnn_ray.tracking import MemberResult, Tracker
from mcnn_ray.training.checkpoint import read_curve
from mcnn_ray.training.run import curve_interval

__all__ = ["SweepFiling", "member_curves"]

logger = logging.getLogger(__name__)

_POLL_S = 5.0
_LONGEST_PAUSE_S = 30.0  # between attempts while the server is away
_PATIENCE_S = 60  # with a server that is away when all else is done
_CLEANUP_S = 15.0  # of a sweep that was interrupted or failed

Curves = dict[str, list[tuple[int, float]]]


def member_curves(plan: SweepPlan, identity: str, on_its_way: Mapping[str, Any] | None = None) -> Curves:
    """Return (step, value) points by name: the training loss, and with intervals what snapshots were evaluated to.

    Args:
        plan: of the sweep.
        identity: of the member.
        on_its_way: its `step` and `train_loss` while it has no curve of its own yet.

    Raises:
        ArtifactError: it has no curve, and none is given.
    """
    # Points after a snapshot that is still to be evaluated wait for it, so that steps rise. Looked for first: what is
    # evaluated in between has its point in the file.
    snapshots = plan.snapshot(identity, 0).parent.glob("step-*")
    open_step = min((int(path.name.removeprefix("step-")) for path in snapshots), default=math.inf)
    path = plan.curve(identity)
    loss = on_its_way if on_its_way is not None and not path.is_file() else read_json(path)
    curves: Curves = {"train_loss": list(zip(loss["step"], loss["train_loss"], strict=True))}
    for point in read_evaluations(plan.evaluations(identity)):
        for name, value in point.items():
            if name not in ("step", "n") and point["step"] < open_step:
                curves.setdefault(f"on_the_way/{name}", []).append((point["step"], value))
    return curves


class SweepFiling:
    """Files learning curves and failures while a sweep goes on, and its results when asked to.

    Use as a context manager. A sweep that fails or is interrupted inside leaves no run marked as running, if the server
    answers within 15 s.

    Args:
        tracker: of the task.
        parent: the sweep's run id.
        plan: of the sweep.
        tell: told of progress.
    """

    def __init__(
        self, tracker: Tracker, parent: str, plan: SweepPlan, tell: Callable[[str, float, float], None]
    ) -> None:
        self._tracker, self._parent, self._plan, self._tell = tracker, parent, plan, tell
        self._runs: dict[str, str | None] = {}  # of members; None when there is nothing more to send
        self._away = False  # the server, at the last attempt
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._send_all_along, name="filing", daemon=True)

    def __enter__(self) -> SweepFiling:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if error is None:
            return
        interrupted = isinstance(error, KeyboardInterrupt)
        cleanup = threading.Thread(target=self._stop, args=(interrupted,), name="filing cleanup", daemon=True)
        cleanup.start()
        cleanup.join(_CLEANUP_S)
        if cleanup.is_alive():
            logger.warning("MLflow does not answer: runs stay marked as running until the same command is given again")

    def follow(self, plan: SweepPlan) -> None:
        """Go on with a plan that members have joined or left."""
        self._plan = plan

    def finish(
        self, results: Sequence[MemberResult], rows: Sequence[Mapping[str, Any]], files: Sequence[Path]
    ) -> str | None:
        """File the results, waiting up to 60 s at a time for a server that is away.

        Args:
            results: of the members.
            rows: the sweep's table.
            files: its figures and what else is filed with it.

        Returns:
            None when all is filed, else why not; the same command files what is missing.
        """
        self._ended.set()
        if self._away:
            self._tell("waiting for MLflow, seconds", 0, _PATIENCE_S)
        self._thread.join()
        try:
            self._patiently(self._send)
            for done, result in enumerate(results, 1):
                self._patiently(functools.partial(self._tracker.log_member, self._parent, result))
                self._tell("MLflow, runs", done, len(results))
            self._patiently(functools.partial(self._tracker.close_sweep, self._parent, rows, files))
        except TrackingError as error:
            return str(error)
        return None

    def _patiently(self, operation: Callable[[], None]) -> None:
        """Do an operation; while it fails, again and again for a while."""
        started = time.monotonic()
        while True:
            try:
                return operation()
            except TrackingError:
                waited = time.monotonic() - started
                if waited >= _PATIENCE_S:
                    raise
            self._tell("waiting for MLflow, seconds", round(waited), _PATIENCE_S)
            time.sleep(min(2.0, _PATIENCE_S - waited))

    def _stop(self, interrupted: bool) -> None:
        self._thread.join()
        if not interrupted:
            try:
                self._send()  # which members failed
            except McnnError as error:  # what stopped the sweep is on its way to the user and matters more
                logger.warning("%s", error)
        self._tracker.stop_sweep(self._parent, interrupted)

    def _send_all_along(self) -> None:
        pause = _POLL_S
        while not self._ended.is_set():
            try:
                self._send()
                pause, self._away = _POLL_S, False
            except McnnError as error:
                if not self._away:
                    logger.warning("%s; the sweep goes on meanwhile", error)
                self._away = True
                pause = min(2 * pause, _LONGEST_PAUSE_S)
            self._ended.wait(pause)

    def _send(self) -> None:
        """Send what the folder holds of trained members and the server lacks."""
        for pack in self._plan.packs:
            if all(self._runs.get(identity, "") is None for identity in pack.members):
                continue
            interval = curve_interval(next(iter(pack.members.values())).steps)
            curve_SP = read_curve(self._plan.checkpoints(pack), interval)
            for position, (identity, member) in enumerate(pack.members.items()):
                loss_S = np.empty(0, np.float32) if curve_SP is None else curve_SP[:, position]
                self._send_member(identity, member, curve_points(loss_S, member.steps))

    def _send_member(self, identity: str, member: Member, loss: Mapping[str, Any]) -> None:
        if identity in self._runs:
            run_id = self._runs.pop(identity)  # put back when it has answered, else looked up again
        else:
            run_id = self._tracker.open_member(self._parent, identity, member.label, member.parameters())
        if run_id is not None:
            self._tracker.log_curves(run_id, member_curves(self._plan, identity, loss))
            failure = self._plan.failure(identity)
            if failure.is_file():
                reason = f"{member.label}: {read_json(failure)['reason']}"
                self._tracker.log_failure(self._parent, identity, member.label, member.parameters(), reason)
                run_id = None
        self._runs[identity] = run_id
