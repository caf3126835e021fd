"""How fast an environment step through the CARLA client and the lite server is.

A step: apply_control, tick, and the 48 x 48 image of that frame; 20 vehicles of traffic. Client and server are a
process each. Prints one line of JSON; run it on an idle machine:

    python tests/benchmarks/lite_server.py --map HighwayLoop --steps 3000
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
spots = world.get_map().get_spawn_points()
random.Random(0).shuffle(spots)
if world.get_map().name.endswith("SmallTown"):
    ego = vehicle(world, -13.47, 160.0, -90)
else:
    ego = vehicle(world, 5, 0, -90)
    near = [(-1 - k % 4, 6.0 + 9 * (k // 4)) for k in range(48)]
    spots = [world.get_map().get_waypoint_xodr(47, lane, s).transform for lane, s in near if s < 117]
sensor, images = camera(world, ego)
blueprint = world.get_blueprint_library().find("vehicle.tesla.model3")
blueprint.set_attribute("role_name", "autopilot")
count = 0
for spot in spots:
    count += world.try_spawn_actor(blueprint, spot) is not None
    if count == VEHICLES:
        break

def server_seconds():
    fields = open("/proc/SERVER/stat").read().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

def step():
    # The speed of the traffic, so that it stays in the picture.
    slow = ego.get_velocity().length() < 6.0
    ego.apply_control(carla.VehicleControl(throttle=0.5 if slow else 0.0))
    frame = world.tick()
    while images.get(timeout=5).frame != frame:
        pass

for _ in range(100):
    step()
rounds = []
for _ in range(ROUNDS):
    busy, started = time.process_time(), time.perf_counter()
    server = server_seconds()
    for _ in range(STEPS):
        step()
    rounds.append([time.perf_counter() - started, time.process_time() - busy, server_seconds() - server])
print(json.dumps([count, rounds]))
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--map", default="HighwayLoop")
    parser.add_argument("--steps", type=int, default=1000, help="of each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--vehicles", type=int, default=20)
    flags = parser.parse_args()
    with lite_server("--map", flags.map) as (port, process):
        program = CLIENT
        settings = {"VEHICLES": flags.vehicles, "ROUNDS": flags.rounds, "STEPS": flags.steps, "SERVER": process.pid}
        for name, value in settings.items():
            program = program.replace(name, str(value))
        started = time.monotonic()
        count, rounds = run_client(port, program, timeout_s=20.0)
        memory = psutil.Process(process.pid).memory_info().rss
    best = min(rounds)
    result = {
        "map": flags.map,
        "vehicles": count,
        "steps_per_s": round(flags.steps / best[0]),
        "steps_per_s_of_rounds": [round(flags.steps / wall) for wall, _, _ in rounds],
        "client_cpu_us": [round(1e6 * client / flags.steps) for _, client, _ in rounds],
        "server_cpu_us": [round(1e6 * server / flags.steps) for _, _, server in rounds],
        "server_rss_mib": round(memory / 2**20),
        "seconds": round(time.monotonic() - started, 1),
        "load_average": os.getloadavg()[0],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
