"""The unmodified CARLA client against the lite server."""

import pytest

from tests.carla.lite.processes import lite_server, run_client


def test_client_shakes_hands_and_sees_that_the_server_is_lite(highway):
    found = run_client(
        highway,
        """
        world = client.get_world()
        print(json.dumps([client.get_server_version(), client.get_client_version(), world.get_map().name,
                          client.get_available_maps(), len(world.get_map().get_spawn_points()) > 50,
                          len(world.get_blueprint_library().filter("vehicle.*")),
                          list(world.get_actors().filter("traffic.*"))]))
        """,
    )
    maps = ["Lite/Maps/HighwayLoop", "Lite/Maps/SmallTown"]
    assert found == ["0.9.16", "0.9.16", "Lite/Maps/HighwayLoop", maps, True, 11, []]


def test_each_synchronous_tick_brings_one_frame_and_one_image_of_each_camera(highway):
    found = run_client(
        highway,
        """
        world = synchronous(client.load_world("HighwayLoop"))
        ego = vehicle(world, 5, 0, -90)
        near, small = camera(world, ego)
        far, wide = camera(world, ego, width=80, height=32, fov=100)
        first = world.get_snapshot().frame
        frames = []
        for _ in range(20):
            ego.apply_control(carla.VehicleControl(throttle=1.0))
            frame = world.tick()
            images = [small.get(timeout=3), wide.get(timeout=3)]
            frames.append([frame - first, *(image.frame - first for image in images)])
        print(json.dumps([frames, [images[1].width, images[1].height, images[1].fov], small.qsize(),
                          ego.get_velocity().length(), ego.get_location().y, ego.get_control().throttle]))
        """,
    )
    frames, wide, waiting, speed, y, throttle = found
    assert frames == [[count] * 3 for count in range(1, 21)]
    assert wide == [80, 32, 100]
    assert waiting == 0
    assert 3.0 < speed < 4.1  # a second at less than 4 m/s2
    assert -2.1 < y < -1.4
    assert throttle == 1.0


def test_asynchronous_world_goes_on_by_itself(highway):
    found = run_client(
        highway,
        """
        world = client.load_world("HighwayLoop")
        frames = [world.wait_for_tick(3).frame for _ in range(3)]
        print(json.dumps([world.get_settings().synchronous_mode, frames[2] - frames[0]]))
        """,
    )
    assert found == [False, 2]


def test_batch_spawns_controls_moves_and_destroys(highway):
    errors, states, left = run_client(
        highway,
        """
        from carla import command
        world = synchronous(client.load_world("HighwayLoop"))
        ego = vehicle(world, 5, 0, -90)
        blueprint = world.get_blueprint_library().find("vehicle.audi.a2")
        blueprint.set_attribute("role_name", "hero")
        place = lambda x, y: carla.Transform(carla.Location(x, y, 0), carla.Rotation(yaw=-90))
        full = command.ApplyVehicleControl(command.FutureActor, carla.VehicleControl(throttle=1.0))
        answers = client.apply_batch_sync([
            command.SpawnActor(blueprint, place(8.5, 20)).then(full),
            command.SpawnActor(blueprint, place(8.5, 21)),
            command.DestroyActor(9999),
            command.ApplyTransform(ego, place(5, 10)),
            command.ApplyTargetVelocity(ego, carla.Vector3D(0, -10, 0)),
        ], True)
        world.tick()
        other = world.get_actor(answers[0].actor_id)
        states = [ego.get_location().y, ego.get_velocity().y, other.get_velocity().y]
        client.apply_batch_sync([command.DestroyActor(other), command.DestroyActor(ego)])
        world.tick()
        print(json.dumps([[answer.error for answer in answers], states,
                          [actor.type_id for actor in world.get_actors()]]))
        """,
    )
    assert [bool(error) for error in errors] == [False, True, True, False, False]
    assert "collision" in errors[1]
    assert "9999" in errors[2]
    y, speed, other_speed = states
    assert 8.9 < y < 9.1  # two ticks at 10 m/s
    assert -10.0 < speed < -9.9
    assert -0.5 < other_speed < -0.3
    assert left == ["spectator"]


def test_vehicle_is_not_spawned_into_another(highway):
    found = run_client(
        highway,
        """
        world = synchronous(client.load_world("HighwayLoop"))
        vehicle(world, 5, 0, -90)
        try:
            vehicle(world, 5.5, 2, -45)
        except RuntimeError as error:
            print(json.dumps(str(error)))
        """,
    )
    assert found == "Spawn failed because of collision at spawn position"


def test_vehicle_stops_at_another_and_its_sensor_tells(highway):
    events, y, speed = run_client(
        highway,
        """
        world = synchronous(client.load_world("HighwayLoop"))
        ego = vehicle(world, 5, 0, -90)
        other = vehicle(world, 5, -12, -90)
        sensor = world.spawn_actor(world.get_blueprint_library().find("sensor.other.collision"), carla.Transform(), ego)
        events = queue.Queue()
        sensor.listen(events.put)
        for _ in range(80):
            ego.apply_control(carla.VehicleControl(throttle=1.0))
            world.tick()
        event = events.get(timeout=3)
        print(json.dumps([[event.actor.id == ego.id, event.other_actor.id == other.id, event.normal_impulse.length()],
                          ego.get_location().y, ego.get_velocity().length()]))
        """,
    )
    assert events[:2] == [True, True]
    assert events[2] > 5000  # 1.5 t at some metres a second
    assert -12 + 2 * 1.853 <= y < -12 + 2 * 1.853 + 0.5
    assert speed == 0.0


def test_maps_are_loaded_by_name_and_from_text(town):
    found = run_client(
        town,
        """
        from pathlib import Path
        names = [client.load_world("HighwayLoop").get_map().name]
        text = client.get_world().get_map().to_opendrive()
        world = client.generate_opendrive_world(text)
        names.append(world.get_map().name)
        names.append(client.reload_world().get_map().name)
        waypoint = world.get_map().get_waypoint(carla.Location(5, 0, 0))
        errors = []
        for attempt in (lambda: client.load_world("Town99"), lambda: client.generate_opendrive_world("<OpenDRIVE/>")):
            try:
                attempt()
            except RuntimeError as error:
                errors.append(str(error))
        print(json.dumps([names, waypoint.road_id, errors, client.get_world().get_map().name]))
        """,
    )
    names, road, errors, last = found
    assert names == ["Lite/Maps/HighwayLoop", "Lite/Maps/OpenDriveMap", "Lite/Maps/OpenDriveMap"]
    assert road == 47
    assert "Town99" in errors[0]
    assert "HighwayLoop" in errors[0]
    assert "OpenDRIVE" in errors[1]
    assert last == "Lite/Maps/OpenDriveMap"  # what failed changed nothing


def test_weather_changes_the_picture(town):
    bright, dark = run_client(
        town,
        """
        world = synchronous(client.load_world("SmallTown"))
        spot = world.get_map().get_spawn_points()[0]
        ego = vehicle(world, spot.location.x, spot.location.y, spot.rotation.yaw)
        sensor, images = camera(world, ego)
        means = []
        for altitude in (90, 0):
            world.set_weather(carla.WeatherParameters(sun_altitude_angle=altitude))
            assert world.get_weather().sun_altitude_angle == altitude
            world.tick()
            means.append(float(rgb(images.get(timeout=3)).mean()))
        print(json.dumps(means))
        """,
    )
    assert dark < 0.5 * bright


@pytest.mark.parametrize("attribute, value", [("image_size_x", "100000"), ("fov", "500"), ("image_size_y", "0")])
def test_impossible_camera_is_refused(town, attribute, value):
    found = run_client(
        town,
        f"""
        world = client.get_world()
        blueprint = world.get_blueprint_library().find("sensor.camera.rgb")
        blueprint.set_attribute("{attribute}", "{value}")
        try:
            world.spawn_actor(blueprint, carla.Transform())
        except RuntimeError as error:
            print(json.dumps(str(error)))
        """,
    )
    assert "possible" in found


def test_new_client_finds_a_restarted_server():
    program = "print(json.dumps(client.get_world().get_map().name))"
    with lite_server() as (port, process):
        assert run_client(port, program) == "Lite/Maps/HighwayLoop"
        process.kill()
        process.wait()
        with lite_server("--map", "SmallTown", port=port) as (again, _):
            assert again == port
            assert run_client(port, program) == "Lite/Maps/SmallTown"


def test_control_and_tick_do_not_wait_for_a_delayed_acknowledgement(highway):
    quarter = run_client(
        highway,
        """
        world = synchronous(client.load_world("HighwayLoop"))
        ego = vehicle(world, 5, 0, -90)
        seconds = []
        for step in range(40):
            started = time.perf_counter()
            ego.apply_control(carla.VehicleControl(throttle=0.1 + 0.1 * (step % 2)))  # an unchanged one is not sent
            world.tick()
            seconds.append(time.perf_counter() - started)
        print(json.dumps(float(np.quantile(seconds, 0.25))))
        """,
    )
    assert quarter < 0.03  # such a delay is 40 ms
