"""`mcnn carla`: CARLA servers by hand."""

from __future__ import annotations

from typing import Annotated

import typer

from mcnn_ray.errors import ConfigError
from mcnn_ray.terminal import output_console

__all__ = ["carla_app"]

carla_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="CARLA servers by hand.")


@carla_app.callback()
def _group() -> None:
    """CARLA servers by hand."""


@carla_app.command()
def serve(
    lite: Annotated[
        bool, typer.Option("--lite", help="The simulator of this package, which speaks CARLA 0.9.16's protocol.")
    ] = False,
    map_name: Annotated[
        str, typer.Option("--map", metavar="NAME|FILE", help="HighwayLoop, SmallTown, or an OpenDRIVE (.xodr) file.")
    ] = "HighwayLoop",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65534, help="Of the calls; streams are on the next. 0 takes free ones.")
    ] = 2000,
    fault: Annotated[
        list[str] | None,
        typer.Option("--fault", metavar="NAME[:VALUE]", help="A fault to have, for tests, e.g. hang-in-tick:50."),
    ] = None,
) -> None:
    """Serve clients on 127.0.0.1 until Ctrl-C or SIGTERM.

    Example: mcnn carla serve --lite --map SmallTown --port 2000
    """
    if not lite:
        raise ConfigError(
            "only the lite server is started by hand: add --lite, or start CARLA 0.9.16 by its own script"
        )
    try:
        from mcnn_ray.carla.lite.faults import parse_faults
        from mcnn_ray.carla.lite.server import serve as serve_lite
    except ImportError as error:
        raise ConfigError(f"{error.name} is not installed; pip install 'mcnn-ray[carla]' brings it") from None

    def started(name: str, port: int) -> None:
        output_console.print(
            f"lite server (not CARLA itself) with map {name} on 127.0.0.1, port {port}, streams on {port + 1}; "
            "end with Ctrl-C",
            highlight=False,
            soft_wrap=True,
        )

    serve_lite(port, map_name, parse_faults(fault or []), started=started)
