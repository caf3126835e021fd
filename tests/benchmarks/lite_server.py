"""How fast an environment step through the CARLA client and the lite server is.

A step: apply_control, tick, and the 48 x 48 image of that frame; 20 vehicles of traffic ahead, on the lanes beside.
Every 250 steps, the horizon of the lane task, all are put back to where they started; that is not timed. Client and
server are a process each. Prints one line of JSON; run it on an idle machine, and under `taskset -c 0` for what client
and server do on one core together:

    python tests/benchmarks/lite_server.py --steps 3000
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import psutil

from tests.carla.lite.processes import lite_server, run_client

CLIENT = """
world = synchronous(client.get_world())
lanes = world.get_map()
# 300 m straight on.
along = lambda lane, metres: lanes.get_waypoint_xodr(47, lane, metres).transform
ego_start = along(-1, 2.0)
ego = world.spawn_actor(world.get_blueprint_library().find("vehicle.audi.a2"), ego_start)
sensor, images = camera(world, ego)
blueprint = world.get_blueprint_library().find("vehicle.tesla.model3")
blueprint.set_attribute("role_name", "autopilot")
starts = [along(-2 - k % 3, 8.0 + 9 * (k // 3)) for k in range(VEHICLES)]
others = [world.spawn_actor(blueprint, start) for start in starts]

def server_seconds():
    fields = open("/proc/SERVER/stat").read().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

def step():
    # About the speed of the traffic, so that it stays in the picture.
    slow = ego.get_velocity().length() < 5.5
    ego.apply_control(carla.VehicleControl(throttle=0.5 if slow else 0.0))
    frame = world.tick()
    while images.get(timeout=5).frame != frame:
        pass

def in_sight():
    here = ego.get_transform()
    away = [other.get_location() - here.location for other in others]
    ahead = here.get_forward_vector()
    right = here.get_right_vector()
    return sum(0 < a.dot(ahead) < 100 and abs(a.dot(right)) < 0.445 * a.dot(ahead) for a in away)

def start_over():
    ego.set_transform(ego_start)
    for other, start in zip(others, starts):
        other.set_transform(start)
    step()

start_over()
rounds, seen = [], []
for _ in range(ROUNDS):
    totals = [0.0, 0.0, 0.0]
    for _ in range(STEPS // 250):
        start_over()
        before = time.perf_counter(), time.process_time(), server_seconds()
        for _ in range(250):
            step()
        after = time.perf_counter(), time.process_time(), server_seconds()
        totals = [total + later - earlier for total, later, earlier in zip(totals, after, before)]
        seen.append(in_sight())
    rounds.append(totals)
print(json.dumps([sum(seen) / len(seen), rounds]))
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000, help="of each round, in episodes of 250")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--vehicles", type=int, default=20)
    flags = parser.parse_args()
    if flags.steps < 250 or flags.steps % 250:
        parser.error(f"--steps is {flags.steps}; give a multiple of 250")
    with lite_server("--map", "HighwayLoop") as (port, process):
        program = CLIENT
        settings = {"VEHICLES": flags.vehicles, "ROUNDS": flags.rounds, "STEPS": flags.steps, "SERVER": process.pid}
        for name, value in settings.items():
            program = program.replace(name, str(value))
        started = time.monotonic()
        in_sight, rounds = run_client(port, program, timeout_s=20.0)
        memory = psutil.Process(process.pid).memory_info().rss
    result = {
        "vehicles": flags.vehicles,
        "vehicles_in_sight": in_sight,
        "steps_per_s": [round(flags.steps / wall) for wall, _, _ in rounds],
        "client_cpu_us": [round(1e6 * client / flags.steps) for _, client, _ in rounds],
        "server_cpu_us": [round(1e6 * server / flags.steps) for _, _, server in rounds],
        "server_rss_mib": round(memory / 2**20),
        "seconds": round(time.monotonic() - started, 1),
        "load_average": os.getloadavg()[0],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
