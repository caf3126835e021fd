"""Promoting the best member of a sweep, or a member that the user names: a version of a registered model, and an alias.

A search and halving have chosen on episode seeds of their own, and so does this; else the returns that are reported are
all there is to choose by, and the one that wins looks better than it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcnn_ray.artifacts import read_json
from mcnn_ray.errors import ArtifactError, ConfigError, did_you_mean
from mcnn_ray.policy_model import find_model
from mcnn_ray.registry import ADVICE, MODELS, RUN_ID, open_store, read_run
from mcnn_ray.rollout.episode import EVALUATION_SEED, SELECTION_SEED
from mcnn_ray.tracking import MEMBER_TAG, MOST_RUNS, PARENT_TAG, SWEEP_TAG, UNREPORTED_TAG, told, tracking_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

__all__ = ["Promotion", "promote"]

_PAGE = 10_000  # versions in one answer: MLflow's limit
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_ALIAS = re.compile(r"(?!latest$|v[0-9]+$)[A-Za-z0-9_-]+", re.IGNORECASE)
_ON_SELECTION_SEEDS = "on_the_way/return"
_FRESH_SEED = 3_000_000  # of episodes that neither choosing nor reporting has met
_RESULTS = [f"{name}{end}" for name in ("score", "return", "success") for end in ("", "_low", "_high")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """A member's run, and how it came to be chosen.

    Attributes:
        run: of the member.
        how: in words.
        notes: what else the user should know.
        flattered: whether its reported results are those that it was chosen by, among others.
    """

    run: Run
    how: str
    notes: tuple[str, ...] = ()
    flattered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """A member that is now a registered model.

    Attributes:
        model: `models:/NAME@ALIAS`.
        version: of the registered model.
        replaces: the version that had the alias before; None where none had.
        member: its label.
        run_id: its MLflow run.
        chosen: how it was chosen.
        notes: what else there is to know: who took no part, and on which seeds its results stand.
        results: mean and interval ends by name, on the reporting seeds: `return`, `return_low`, ...
    """

    model: str
    version: str
    replaces: str | None
    member: str
    run_id: str
    chosen: str
    notes: tuple[str, ...]
    results: Mapping[str, float]

    def intervals(self) -> dict[str, str]:
        """Return mean and interval of each result in words, by name."""
        texts = {}
        for name, mean in self.results.items():
            if not name.endswith(("_low", "_high")):
                ends = [f"{self.results[key]:.4g}" for key in (f"{name}_low", f"{name}_high") if key in self.results]
                texts[name] = f"{mean:.4g} [{', '.join(ends) or 'n/a'}]"
        return texts

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {**asdict(self), "notes": list(self.notes)}


def promote(what: str, storage: Path, name: str | None = None, alias: str = "champion") -> Promotion:
    """Register a member as a model under an alias; the same again changes nothing.

    Args:
        what: a sweep, by its name, its folder or its MLflow run; or a member's run, which is taken as it is.
        storage: folder of sweeps and of the default store.
        name: of the registered model; None takes the task's.
        alias: that shall point to it.

    Raises:
        ArtifactError: there is no such sweep or run, it is not finished, or has no policy.
        ConfigError: the name or alias cannot be used, or several sweeps have the name.
        TrackingError: the store or server cannot be used.
    """
    if name is not None and not _NAME.fullmatch(name):
        raise ConfigError(f"--name {name} cannot name a model; use letters, digits and . _ + -, e.g. door-expert")
    if not _ALIAS.fullmatch(alias):
        raise ConfigError(
            f"--alias {alias} cannot be an alias; use letters, digits, _ and -, other than latest and v1, e.g. champion"
        )
    client = open_store(storage, what)
    with told(tracking_uri(storage), ADVICE):
        run = _find_run(client, what, storage)
        tags = run.data.tags
        if SWEEP_TAG not in tags and MEMBER_TAG not in tags:
            raise ArtifactError(f"the run {run.info.run_id} is neither a sweep's nor a member's; mcnn ui shows those")
        choice = _choose(client, run) if SWEEP_TAG in tags else _Choice(run=run, how="named by its run")
        return _register(client, choice, name, alias)


def _find_run(client: MlflowClient, what: str, storage: Path) -> Run:
    if RUN_ID.fullmatch(what):
        return read_run(client, what)
    folders = [folder for folder in (Path(what), storage / what) if (folder / "sweep.json").is_file()]
    identity = str(read_json(folders[0] / "sweep.json").get("id")) if folders else None
    experiments = [found.experiment_id for found in client.search_experiments()]
    runs = client.search_runs(experiments, f"tags.`{SWEEP_TAG}` != ''", max_results=MOST_RUNS)
    found = [run for run in runs if identity in (None, run.data.tags[SWEEP_TAG])]
    if identity is None:
        found = [run for run in found if run.info.run_name == what]
    if not found:
        known = sorted({str(run.info.run_name) for run in runs})
        hint = did_you_mean(what, known) if known else "it has none; mcnn sweep makes one"
        raise ArtifactError(f"MLflow knows no sweep '{what}'; {hint}")
    if len(found) > 1:
        ids = ", ".join(str(run.info.run_id) for run in found)
        raise ConfigError(f"several sweeps are called '{what}'; name one by its run: {ids}")
    return found[0]


def _choose(client: MlflowClient, sweep: Run) -> _Choice:
    """Return the best member of the best setting: that with the highest mean return over its training seeds."""
    if sweep.info.status != "FINISHED":
        raise ArtifactError(
            f"the sweep {sweep.info.run_name} is not finished but {sweep.info.status}; give its command again, or name "
            "a member by its run"
        )
    condition = f"tags.`{PARENT_TAG}` = '{sweep.info.run_id}' and attributes.status = 'FINISHED'"
    found = client.search_runs([sweep.info.experiment_id], condition, max_results=MOST_RUNS)
    # In the order of their labels, so that of equal ones the same is taken again.
    members = sorted(
        (run for run in found if UNREPORTED_TAG not in run.data.tags and "return" in run.data.metrics),
        key=lambda run: (str(run.info.run_name), str(run.info.run_id)),
    )
    if not members:
        raise ArtifactError(f"the sweep {sweep.info.run_name} has no member with a result")
    returns = _selection_returns(client, sweep, members)
    if returns:
        seeds = f"the episode seeds for choosing (from {SELECTION_SEED} on)"
        left_out = [str(run.info.run_name) for run in members if run.info.run_id not in returns]
        notes = (f"took no part, without episodes on those seeds: {', '.join(left_out)}",) if left_out else ()
    else:
        returns = {run.info.run_id: run.data.metrics["return"] for run in members}
        seeds, notes = f"the episode seeds that are reported (from {EVALUATION_SEED} on)", ()
    settings = _settings([run for run in members if run.info.run_id in returns])
    means = [sum(returns[run.info.run_id] for run in group) / len(group) for group in settings]
    best = settings[means.index(max(means))]
    chosen = max(best, key=lambda run: returns[run.info.run_id])
    of_seeds = f", and of its {len(best)} training seeds the best" if len(best) > 1 else ""
    return _Choice(
        run=chosen,
        how=f"the best of {len(settings)} settings by mean return on {seeds}{of_seeds}",
        notes=notes,
        flattered=seeds.startswith("the episode seeds that are reported") and len(returns) > 1,
    )


def _settings(members: Sequence[Run]) -> list[list[Run]]:
    """Return members by setting: those of one differ in the seed alone."""
    settings: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run in members:
        setting = tuple(sorted((key, value) for key, value in run.data.params.items() if key != "seed"))
        settings.setdefault(setting, []).append(run)
    return list(settings.values())


def _selection_returns(client: MlflowClient, sweep: Run, members: Sequence[Run]) -> dict[str, float]:
    """Return members' mean returns on the seeds for choosing, by run.

    They count where the sweep itself chose by them, or where they are those of finished policies; else there are none.
    """
    curves = {
        run.info.run_id: client.get_metric_history(run.info.run_id, _ON_SELECTION_SEEDS)
        for run in members
        if _ON_SELECTION_SEEDS in run.data.metrics
    }
    last = max((point.step for curve in curves.values() for point in curve), default=0)
    parameters = sweep.data.params
    finished = all(run.data.params.get("steps") == str(last) for run in members if run.info.run_id in curves)
    if not finished and parameters.get("search", "grid") == "grid" and "halving" not in parameters:
        return {}
    return {run_id: point.value for run_id, curve in curves.items() for point in curve if point.step == last}


def _register(client: MlflowClient, choice: _Choice, name: str | None, alias: str) -> Promotion:
    run = choice.run
    model = find_model(client, run)
    if model is None:
        raise ArtifactError(
            f"{run.info.run_name} (run {run.info.run_id}) has no model in MLflow: its training is not finished, or an "
            "earlier version of mcnn filed it; the sweep's command, given again, files it"
        )
    task = client.get_experiment(run.info.experiment_id).name
    name = name or re.sub(r"[^A-Za-z0-9._+-]+", "-", task).strip("-")
    uri = f"{MODELS}{name}@{alias}"
    notes = choice.notes
    if choice.flattered:
        notes = (
            *notes,
            "its results are those it was chosen by, so they flatter it; on fresh seeds: "
            f"mcnn evaluate {uri} --episodes 100 --first-seed {_FRESH_SEED}",
        )
    registered = client.search_registered_models(f"name = '{name}'")
    if not registered:
        client.create_registered_model(name, description=f"policies of {task}")
    versions = client.search_model_versions(f"name = '{name}'", max_results=_PAGE)
    version = next((str(found.version) for found in versions if found.source == model.artifact_location), None)
    if version is None:
        made = client.create_model_version(
            name,
            model.artifact_location,  # models:/ID would be looked up in the process's own store
            run.info.run_id,
            tags={MEMBER_TAG: run.data.tags[MEMBER_TAG]},
            description=f"{run.info.run_name}: {choice.how}",
            model_id=model.model_id,
        )
        version = str(made.version)
    before = registered[0].aliases.get(alias) if registered else None
    client.set_registered_model_alias(name, alias, version)
    return Promotion(
        model=uri,
        version=version,
        replaces=None if before is None or str(before) == version else str(before),
        member=str(run.info.run_name),
        run_id=str(run.info.run_id),
        chosen=choice.how,
        notes=notes,
        results={key: run.data.metrics[key] for key in _RESULTS if key in run.data.metrics},
    )
