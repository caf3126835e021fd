"""Whether a server works: run as a process of its own, since a server can end or stop the client that asks it.

Prints one line of JSON: `map` and `version`; or `error`, and with it `permanent` where trying again cannot help.
"""

from __future__ import annotations

import json
import sys

from mcnn_ray.carla.connection import Address, Connection
from mcnn_ray.errors import McnnError, ServerError

__all__ = ["main"]

_TICKS = 2
_LOAD_S = 120.0  # of another map


def _probe(address: Address, maps: list[str], load: bool, answer_s: float) -> dict[str, str]:
    import carla

    client = carla.Client(address.host, address.port)
    client.set_timeout(answer_s)
    # Of all calls the one that other threads can go on with. Other versions are refused below, by the connection.
    if client.get_server_version() == client.get_client_version() and load:
        client.set_timeout(_LOAD_S)
        if client.get_world().get_map().name.rpartition("/")[2] not in maps:
            client.load_world(maps[0])
    connection = Connection(address, maps, answer_s)
    try:
        for _ in range(_TICKS):
            connection.tick()
        library = connection.world.get_blueprint_library()
        camera = library.find("sensor.camera.rgb")
        camera.set_attribute("image_size_x", "32")
        camera.set_attribute("image_size_y", "32")
        with connection.calling("spawning a camera"):
            camera = connection.world.spawn_actor(camera, carla.Transform())  # kept, or it would send no more
        images = connection.mount_camera(camera)
        connection.tick()
        connection.image(images)
    finally:
        connection.close()
    return {"map": connection.map_name, "version": connection.version}


def main() -> None:
    """Probe the server that the arguments name: HOST PORT MAP,MAP LOAD ANSWER_S."""
    host, port, maps, load, answer_s = sys.argv[1:]
    try:
        told = _probe(Address(host, int(port), int(port) + 3), maps.split(","), load == "True", float(answer_s))
    except ServerError as error:
        told = {"error": str(error)}
    except McnnError as error:
        told = {"error": str(error), "permanent": "yes"}
    except RuntimeError as error:
        told = {"error": " ".join(str(error).split())}
    print(json.dumps(told))  # noqa: T201


if __name__ == "__main__":
    main()
