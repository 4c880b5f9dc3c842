"""Runs in MLflow, for simulations and exports; the library is imported on use."""

import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from fedloom.protocol.errors import UsageError


class MLflowRun:
    """A run at a tracking server or in a database.

    Args:
        name: of the experiment.
        settings: dotted names and values, as the run's parameters.
        run_id: of the run to continue.
        uri: of the store; empty for MLFLOW_TRACKING_URI.
        tags: of the run; without `run_id`, the experiment's run with these tags is continued.
        wish: the option that needs MLflow, for error messages.

    Raises:
        UsageError: MLflow is not installed, or its store cannot be written.
    """

    def __init__(
        self,
        name: str,
        settings: Mapping[str, Any],
        *,
        run_id: str = "",
        uri: str = "",
        tags: Mapping[str, str] | None = None,
        wish: str = "--mlflow",
    ) -> None:
        try:
            library = import_module("mlflow")
            self._entities: Any = import_module("mlflow.entities")
        except ModuleNotFoundError as error:
            raise UsageError(
                f"{wish} needs MLflow, which is not installed. Run pip install mlflow, or remove "
                f"{wish}."
            ) from error
        try:
            self._client: Any = library.MlflowClient(uri) if uri else library.MlflowClient()
            self.run_id = run_id or self._begin(name, settings, tags or {})
        except Exception as error:  # errors depend on the kind of store
            where = "the URI" if uri else "MLFLOW_TRACKING_URI"
            raise UsageError(
                f"MLflow cannot start a run: {error} Check {where}, such as sqlite:///mlflow.db, "
                f"or remove {wish}."
            ) from error

    def append(self, step: int, scalars: Mapping[str, float], at: float | None = None) -> None:
        """Log a step's scalars; `at` is the time, seconds since the epoch."""
        at_ms = int(1000 * (time.time() if at is None else at))
        metrics = [self._entities.Metric(n, value, at_ms, step) for n, value in scalars.items()]
        self._client.log_batch(self.run_id, metrics=metrics)

    def tag(self, name: str, value: str) -> None:
        """Set a tag of the run."""
        self._client.set_tag(self.run_id, name, value)

    def tagged(self, name: str) -> str:
        """The value of a tag of the run; empty if it is not set."""
        return str(self._client.get_run(self.run_id).data.tags.get(name, ""))

    def close(self) -> None:
        """Mark the run as ended."""
        self._client.set_terminated(self.run_id)

    def _begin(self, name: str, settings: Mapping[str, Any], tags: Mapping[str, str]) -> str:
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self._client.create_experiment(name)
        if tags:
            wanted = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
            for found in self._client.search_runs([experiment], wanted, max_results=1):
                return str(found.info.run_id)
        begun = self._client.create_run(experiment, run_name=next(iter(tags.values()), name))
        run_id: str = begun.info.run_id
        for key, value in tags.items():
            self._client.set_tag(run_id, key, value)
        for key, value in settings.items():
            self._client.log_param(run_id, key, str(value)[:6000])
        return run_id
