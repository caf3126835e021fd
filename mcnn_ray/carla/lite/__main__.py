"""`python -m mcnn_ray.carla.lite`: the lite server without the rest of the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from mcnn_ray.carla.lite.maps import DEFAULT_MAP
from mcnn_ray.terminal import run_app

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def main(
    port: Annotated[
        int, typer.Option("--port", min=0, max=65534, help="Of the calls; streams are on the next.")
    ] = 2000,
    map_name: Annotated[str, typer.Option("--map", help="A packaged map, or an OpenDRIVE file.")] = DEFAULT_MAP,
    fault: Annotated[
        list[str] | None, typer.Option("--fault", help="NAME or NAME:VALUE, see the faults module.")
    ] = None,
) -> None:
    """Serve on 127.0.0.1 until ended."""
    from mcnn_ray.carla.lite.faults import parse_faults
    from mcnn_ray.carla.lite.server import serve

    def started(name: str, port: int) -> None:
        print(f"lite server (not CARLA itself), map {name}, port {port}, streams on {port + 1}", flush=True)  # noqa: T201

    serve(port, map_name, parse_faults(fault or []), started=started)


if __name__ == "__main__":
    import sys

    run_app(app, sys.argv[1:])
