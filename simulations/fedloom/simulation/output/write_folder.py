"""Write a simulation's folder: settings, the model, pictures and the report."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fedloom.simulation.data.statistics import statistics
from fedloom.simulation.experiment import Experiment
from fedloom.simulation.output import report
from fedloom.simulation.output.files import BEST, OutputFolder
from fedloom.simulation.output.history import Result, RoundRecord
from fedloom.simulation.output.trackers import Trackers, wanted


def given(experiment: Experiment) -> Mapping[str, Any]:
    """The settings that the experiment was made from; for one made in Python, `resolved`."""
    return experiment.settings or resolved(experiment)


def resolved(experiment: Experiment) -> dict[str, Any]:
    """Every setting with its value, in plain values."""
    settings = experiment.settings
    own = {"clients": len(experiment.population), "examples": len(experiment.population.examples)}
    return {
        **experiment.spec.as_dict(),
        "data": {**own, **settings.get("data", {})},
        "model": dict(settings.get("model", {"name": getattr(experiment.model, "__name__", "")})),
        **{name: dict(settings.get(name, {})) for name in ("optimizer", "client", "devices")},
        "engine": asdict(experiment.engine),
        "test": {"every": experiment.test_every},
        "stop": dict(experiment.stop),
    }


def trackers(
    folder: OutputFolder,
    experiment: Experiment,
    before: Sequence[RoundRecord],
    best: Mapping[str, Any] | None,
) -> Trackers:
    """The trackers of [output], with the rounds and the best model of a resumed simulation."""
    return wanted(
        experiment.settings.get("output", {}),
        folder.path,
        name=experiment.spec.name,
        settings=resolved(experiment),
        before=before[-1].round if before else 0,
        best=best,
    )


def write(
    folder: OutputFolder,
    result: Result,
    experiment: Experiment,
    dtypes: Mapping[str, str],
    command: str,
) -> None:
    """Write the model, the plots and the report, and mark the folder as complete."""
    # Imported here: matplotlib takes half a second, which must not delay the first round.
    from fedloom.simulation.data.heatmap import heat_map  # noqa: PLC0415
    from fedloom.simulation.output import plots  # noqa: PLC0415

    folder.write_model(result.params, dtypes)
    if result.best_params is not None:
        folder.write_model(result.best_params, dtypes, BEST)
    folder.finish(rounds=len(result.records), stopped=result.stopped)
    if result.records:
        plots.draw_all(result.records, folder.path / "plots", name=experiment.spec.name)
    population = experiment.population
    picture = heat_map(population)
    (folder.path / "plots").mkdir(exist_ok=True)
    (folder.path / "plots" / "partition.png").write_bytes(picture)
    subject = report.Subject(
        name=experiment.spec.name,
        settings=resolved(experiment),
        environment=json.loads((folder.path / "environment.json").read_text("utf-8")),
        command=command,
        partition=dict(statistics(population).rows()),
        heat_map=picture,
    )
    report.write(folder.path / "report.html", result, subject)
