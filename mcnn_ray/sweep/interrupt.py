"""Ctrl-C: once, packs write a checkpoint and leave; twice, the sweep ends at once."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from mcnn_ray.sweep.plan import SweepPlan

__all__ = ["stop_in_order"]

logger = logging.getLogger(__name__)


@contextmanager
def stop_in_order(plan: SweepPlan) -> Iterator[None]:
    """Turn the first SIGINT inside the block into a request to those who train, and end the block with it.

    Only the main thread gets signals; in others the block runs as it is.

    Raises:
        KeyboardInterrupt: at the end of the block, after whoever trains has left; or at once at a second SIGINT.
    """
    plan.stop_request.unlink(missing_ok=True)  # of an earlier start that was ended at once
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def request(number: int, frame: FrameType | None) -> None:
        plan.stop_request.touch()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        logger.warning("stopping: packs finish their step and write a checkpoint; Ctrl-C again ends at once")

    before = signal.signal(signal.SIGINT, request)
    try:
        yield
        if plan.stopping():
            raise KeyboardInterrupt
    finally:
        signal.signal(signal.SIGINT, before)
        plan.stop_request.unlink(missing_ok=True)
