"""How much each parameter matters for the best trials."""

import warnings
from contextlib import suppress

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

from fedloom.simulation.sweep.outcome import FINISHED, SweepResult
from fedloom.simulation.sweep.pictures import frame

_LEAST = 50
"""Finished trials below which an importance would be noise: the best tenth needs five."""


def importances(outcome: SweepResult) -> dict[str, float]:
    """Each parameter's importance for reaching the best tenth of the trials.

    It is a share of the sum over the parameters; empty for too few trials.

    Source: Watanabe et al. (2023), "PED-ANOVA: efficiently quantifying hyperparameter importance
    in arbitrary subspaces", IJCAI.
    """
    rows = [row for row in frame.usable(outcome.rows) if row.state == FINISHED]
    varying = [p for p in outcome.sweep.parameters if frame.varies(rows, p.name)]
    if len(rows) < _LEAST or len(varying) < 2:
        return {}
    study = optuna.create_study(direction=outcome.sweep.objective.direction)
    for row in rows:
        study.add_trial(
            optuna.trial.create_trial(
                params={p.name: p.encode(row.parameters[p.name]) for p in varying},
                distributions={p.name: p.distribution for p in varying},
                value=row.value,
            )
        )
    with warnings.catch_warnings(), suppress(ValueError, RuntimeError):
        warnings.simplefilter("ignore")
        return dict(get_param_importances(study, evaluator=PedAnovaImportanceEvaluator()))
    return {}
