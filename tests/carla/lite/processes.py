"""Servers and clients of the tests, each a process of its own: the client library can take its process down with it."""

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import textwrap

import msgpack

PRELUDE = """
import hashlib, json, math, os, queue, random, sys, time
import carla, numpy as np
client = carla.Client("127.0.0.1", int(sys.argv[1]))
client.set_timeout(float(sys.argv[2]))

def synchronous(world, delta=0.05):
    settings = world.get_settings()
    settings.synchronous_mode, settings.fixed_delta_seconds = True, delta
    world.apply_settings(settings)
    return world

def vehicle(world, x, y, yaw, role="hero", kind="vehicle.audi.a2", z=0.1):
    blueprint = world.get_blueprint_library().find(kind)
    blueprint.set_attribute("role_name", role)
    return world.spawn_actor(blueprint, carla.Transform(carla.Location(x, y, z), carla.Rotation(yaw=yaw)))

def camera(world, parent, width=48, height=48, fov=48, x=1.6, z=1.7):
    blueprint = world.get_blueprint_library().find("sensor.camera.rgb")
    for name, value in (("image_size_x", width), ("image_size_y", height), ("fov", fov)):
        blueprint.set_attribute(name, str(value))
    sensor = world.spawn_actor(blueprint, carla.Transform(carla.Location(x=x, z=z)), attach_to=parent)
    images = queue.Queue()
    sensor.listen(images.put)
    return sensor, images

def rgb(image):
    return np.frombuffer(image.raw_data, np.uint8).reshape(image.height, image.width, 4)[..., 2::-1]
"""


@contextlib.contextmanager
def lite_server(*flags, port=0):
    """A lite server; gives its port and its process."""
    command = [sys.executable, "-m", "mcnn_ray", "carla", "serve", "--lite", "--port", str(port), *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        found = re.search(r"port (\d+)", line)
        assert found, line + process.stderr.read()
        yield int(found[1]), process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def run_client(port, program, timeout_s=5.0, status=0):
    """Run a client's program; return what it printed last as JSON."""
    # Without the interpreter's end, at which the client aborts now and then if a sensor still listens.
    program = f"{PRELUDE}{textwrap.dedent(program)}\nsys.stdout.flush()\nos._exit(0)\n"
    command = [sys.executable, "-c", program, str(port), str(timeout_s)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    return json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else None


class RawClient:
    """Calls without the client library."""

    def __init__(self, port, timeout_s=5.0):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self.unpacker = msgpack.Unpacker(raw=False, strict_map_key=False)

    def call(self, method, *arguments):
        return self.send(msgpack.packb([0, 7, method, [[False], *arguments]]))

    def send(self, data):
        self.socket.sendall(data)
        while True:
            for message in self.unpacker:
                return message[3]
            received = self.socket.recv(65536)
            if not received:
                raise ConnectionError("the server closed the connection")
            self.unpacker.feed(received)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()


def ended_by(process, number=signal.SIGTERM):
    """End a server and return its status and what it wrote to standard error."""
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    return process.returncode, errors
