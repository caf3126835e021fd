"""The command `mcnn memories`: a codebook learned and looked at, before anything is trained on it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from mcnn_ray.cli_flags import Encoder
from mcnn_ray.search_space import values_of
from mcnn_ray.terminal import DEFAULT_STORAGE, AsJson, StageProgress, Storage, output_console, print_json

if TYPE_CHECKING:
    from mcnn_ray.config import SweepConfig
    from mcnn_ray.core.codebook import Codebook
    from mcnn_ray.sweep.study import Study

__all__ = ["memories"]


def _draw_function_class(folder: Path | None) -> None:
    if folder is None:
        return
    from mcnn_ray.report.function_class import save_function_class

    with StageProgress() as progress:
        progress("pictures", 0, 4)
        paths = save_function_class(folder, progress=lambda done, total: progress("pictures", done, total))
    for path in paths:
        _say(f"picture: {path}")
    raise typer.Exit


def memories(
    task: Annotated[str, typer.Argument(help="Catalogue name (mcnn tasks), or ENVIRONMENT@DATASET.")],
    fraction: Annotated[str, typer.Option("--fraction", help="Memories over demonstration steps, below 1.")] = "0.1",
    method: Annotated[str, typer.Option("--method", help="neural-gas, k-means, k-center or random.")] = "neural-gas",
    seed: Annotated[int, typer.Option("--seed", help="Of the codebook.")] = 0,
    lambda_: Annotated[str, typer.Option("--lambda", help="Show the weights that these give.")] = "0.1,1,10,100",
    dataset: Annotated[str | None, typer.Option("--dataset", help="Minari id instead of the task's own.")] = None,
    encoder: Encoder = None,
    demonstrations: Annotated[
        int | None, typer.Option("--demonstrations", help="Learn from so many episodes only.")
    ] = None,
    clip_actions: Annotated[bool, typer.Option("--clip-actions", help="Clip actions to the bounds.")] = False,
    constant_columns: Annotated[str, typer.Option("--constant-columns", help="refuse or ignore.")] = "refuse",
    min_episodes: Annotated[int, typer.Option("--min-episodes", help="Refuse datasets with fewer.")] = 2,
    storage: Storage = DEFAULT_STORAGE,
    as_json: AsJson = False,
    function_class: Annotated[
        Path | None,
        typer.Option(
            "--function-class",
            callback=_draw_function_class,
            is_eager=True,
            help="Without a TASK: draw the model class (the paper's Figure 2, its families over memories, lambda, L) "
            "into this folder, and end.",
        ),
    ] = None,
) -> None:
    """Learn a codebook and show what it is: how close its memories lie, and what each lambda means there.

    Example: mcnn memories door-expert-v1 --fraction 0.1
    """
    from mcnn_ray.config import SweepConfig
    from mcnn_ray.errors import ConfigError
    from mcnn_ray.sweep.studies import open_study

    values = {
        "task": task,
        "dataset": dataset,
        "demonstrations": demonstrations,
        "encoder": encoder,
        "method": "mcnn+mlp",
        "lambda": lambda_.split(","),
        "memory_fraction": fraction,
        "memories": list(dict.fromkeys([method, "random"])),  # random rows of the same number, for scale
        "memory_seed": seed,
        "batch_size": 1,  # nothing is trained, so a dataset smaller than a batch is no fault
        "clip_actions": clip_actions,
        "constant_columns": constant_columns,
        "min_episodes": min_episodes,
    }
    config = SweepConfig.parse(values, "flags")
    if config.memory_fraction == (1.0,):
        raise ConfigError("memory_fraction is 1: every demonstration would be a memory at distance 0; use less than 1")
    with StageProgress() as progress:
        study = open_study(config, storage / "cache", lambda name, share: progress(name, share, 1.0))
        study.learn_codebooks(
            config.members(),
            storage / "cache" / "codebooks",
            lambda name, share: progress(f"memories {name}", share, 1.0),
        )
        facts, folder = _describe(study, config), storage / "memories" / _folder_name(study, config)
        progress("pictures", 0.0, 1.0)
        facts["pictures"] = [str(path) for path in _write_pictures(study, config, folder, facts)]
        progress("pictures", 1.0, 1.0)
    if as_json:
        print_json(facts)
    else:
        _print_facts(facts)


def _books(study: Study, config: SweepConfig) -> tuple[Codebook, Codebook]:
    """Return the codebook asked for and the random one; the same twice when random rows are asked for."""
    books = {m.memories: study.codebooks[m.codebook_key] for m in config.members() if m.codebook_key is not None}
    return books[config.memories[0]], books["random"]


def _describe(study: Study, config: SweepConfig) -> dict[str, Any]:
    """Return what there is to say of a codebook, as JSON values; distances in standardised units."""
    from mcnn_ray.report.codebook_pictures import distances_to_memories, half_weight_lambda, summarise_weights

    book, random = _books(study, config)
    distances = distances_to_memories(book)
    summaries = summarise_weights(
        distances, list(dict.fromkeys(member.lambda_ for member in config.members() if member.lambda_ is not None))
    )
    return {
        "task": study.task.id,
        "dataset": study.demonstrations.source,
        "sha256": study.demonstrations.sha256,
        "episodes": study.demonstrations.episodes,
        "steps": study.demonstrations.steps,
        "method": book.method,
        "fraction": book.fraction,
        "seed": book.seed,
        "memories": len(book.rows_M),
        "edges": len(book.edges_E2),
        "quantisation_error": book.quantisation_error,
        "most_isolated_distance": book.most_isolated_distance,
        "random_quantisation_error": random.quantisation_error,
        "random_most_isolated_distance": random.most_isolated_distance,
        "weights": [
            {
                "lambda": summary.lambda_,
                "mean": summary.mean,
                "median": summary.median,
                "p05": summary.low,
                "p95": summary.high,
            }
            for summary in summaries
        ],
        "half_weight_lambda": half_weight_lambda(distances),
    }


def _folder_name(study: Study, config: SweepConfig) -> str:
    """Return a name that tells the codebook apart to the eye, and by a hash from all others."""
    from mcnn_ray.artifacts import content_hash

    fraction, method = values_of(config.memory_fraction)[0], config.memories[0]
    shown = [study.demonstrations.sha256, method, fraction, config.memory_seed, list(config.lambda_)]
    task = re.sub(r"[^A-Za-z0-9._-]+", "-", study.task.id)
    return f"{task}-{method}-{fraction:g}-{content_hash(shown)[:8]}"


def _write_pictures(study: Study, config: SweepConfig, folder: Path, facts: dict[str, Any]) -> list[Path]:
    """Write both pictures and the facts into a folder that appears whole or not at all; return the pictures."""
    from mcnn_ray.artifacts import write_directory, write_json
    from mcnn_ray.report.codebook_pictures import (
        codebook_figure,
        distances_to_memories,
        save_figure,
        weight_figure,
    )

    book, _ = _books(study, config)
    what = f"{facts['task']}: {facts['memories']:,} memories ({facts['method']}, {100 * facts['fraction']:g} %)"
    distances = distances_to_memories(book)
    figures = {
        "codebook": codebook_figure(study.obs_ND, book, f"{what} of {facts['steps']:,} demonstration steps"),
        "weights": weight_figure(
            distances,
            [weights["lambda"] for weights in facts["weights"]],
            f"{what}, seen from the other {len(distances):,} demonstration steps",
        ),
    }
    with write_directory(folder) as target:
        names = [path.name for stem, figure in figures.items() for path in save_figure(figure, target / stem)]
        write_json(target / "memories.json", facts)
    return [folder / name for name in names]


def _print_facts(facts: dict[str, Any]) -> None:
    beside = ["random rows"] if facts["method"] != "random" else []
    table = _table(["", facts["method"], *beside])
    count, share, edges = f"{facts['memories']:,}", f"{100 * facts['fraction']:g}%", f"{facts['edges']:,}"
    rows = [("memories", count, count), ("memory fraction", share, share)]
    for key in ("quantisation_error", "most_isolated_distance"):
        rows.append((key.replace("_", " "), f"{facts[key]:.4f}", f"{facts[f'random_{key}']:.4f}"))
    for row in [*rows, ("edges", edges, "0")]:
        table.add_row(*row[: len(table.columns)])
    _say(f"{facts['task']}: {facts['episodes']} demonstrations ({facts['dataset']}, {facts['steps']:,} steps)")
    output_console.print(table)
    _say("in standardised units: mean and largest distance of the demonstration steps to their nearest memory\n")
    _print_weights(facts)
    for path in facts["pictures"]:
        _say(f"picture: {path}")


def _print_weights(facts: dict[str, Any]) -> None:
    from mcnn_ray.report.codebook_pictures import WeightSummary

    others = facts["steps"] - facts["memories"]
    _say(f"weight exp(-lambda d) of the nearest memory, over the {others:,} demonstration steps that are no memory")
    table = _table(["lambda", "mean", "median", "5 %", "95 %"])
    for weights in facts["weights"]:
        summary = WeightSummary(
            lambda_=weights["lambda"],
            mean=weights["mean"],
            median=weights["median"],
            low=weights["p05"],
            high=weights["p95"],
        )
        table.add_row(*summary.texts())
    output_console.print(table)
    if facts["half_weight_lambda"] is not None:
        _say(f"lambda {facts['half_weight_lambda']:.3g} halves the weight at the median distance\n")


def _say(text: str) -> None:
    # Not a table's title, which would be folded to the table's width.
    output_console.print(text, highlight=False, markup=False, soft_wrap=True)


def _table(columns: list[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for name in columns:
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    return table
