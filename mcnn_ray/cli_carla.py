"""`mcnn carla`: CARLA servers by hand."""

from __future__ import annotations

from typing import Annotated

import typer
from rich import box
from rich.table import Table

from mcnn_ray.errors import ConfigError
from mcnn_ray.terminal import AsJson, output_console, print_json

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


@carla_app.command()
def status(
    clean: Annotated[bool, typer.Option("--clean", help="End servers whose supervisor has died.")] = False,
    as_json: AsJson = False,
) -> None:
    """Servers that this machine's workers keep, and ports that are left alone after failures.

    Example: mcnn carla status
    """
    from mcnn_ray.carla.plan import find_plan
    from mcnn_ray.carla.ports import private_folder
    from mcnn_ray.carla.servers import list_servers, remove_leftovers

    folder = private_folder(find_plan("", "", {}).place)
    ended = remove_leftovers(folder) if clean else []
    rows = list_servers(folder)
    if as_json:
        print_json(rows)
        return
    for record in ended:
        output_console.print(f"ended what was left of the server at {record.address}", highlight=False)
    if not rows:
        output_console.print("no servers are kept on this machine")
        return
    table = Table(box=box.SIMPLE_HEAD)
    for column in rows[0]:
        table.add_column(column.replace("_", " "), no_wrap=column == "server")
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row.values()))
    output_console.print(table)
