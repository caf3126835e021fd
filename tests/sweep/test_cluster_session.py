import subprocess
import sys

KILLED = """
import os, signal
import ray
from mcnn_ray.sweep.cluster import ray_session

@ray.remote(max_retries=0)
def die():
    os.kill(os.getpid(), signal.SIGKILL)

with ray_session():
    try:
        ray.get(die.remote())
    except ray.exceptions.WorkerCrashedError:
        import time
        time.sleep(2)  # Ray tells of it from a thread
print("the result")
"""


def test_what_ray_tells_of_deaths_stays_off_standard_output():
    ended = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True)
    assert ended.stdout == "the result\n"
    assert "A worker died or was killed" in ended.stderr
