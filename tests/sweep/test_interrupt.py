import os
import signal
import time

import pytest

from mcnn_ray.sweep.interrupt import stop_in_order
from mcnn_ray.sweep.plan import SweepPlan


@pytest.fixture
def plan(tmp_path):
    return SweepPlan(id="s", folder=tmp_path, members={}, packs=[])


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.01)  # the handler runs between two instructions of this thread


def test_first_interrupt_asks_to_stop_and_ends_the_sweep_when_the_work_has_left(plan):
    left = False
    with pytest.raises(KeyboardInterrupt), stop_in_order(plan):
        interrupt()
        assert plan.stopping()
        left = True
    assert left
    assert not plan.stopping()


def test_second_interrupt_ends_at_once(plan):
    with pytest.raises(KeyboardInterrupt), stop_in_order(plan):
        interrupt()
        interrupt()
        pytest.fail("went on after the second interrupt")


def test_request_of_an_earlier_start_is_forgotten_and_the_handler_is_put_back(plan):
    plan.stop_request.touch()
    before = signal.getsignal(signal.SIGINT)
    with stop_in_order(plan):
        assert not plan.stopping()
    assert signal.getsignal(signal.SIGINT) is before
