"""Invented simulations, for tests that show or store them."""

import math

import numpy as np

from fedloom.simulation.output.history import Result, RoundRecord, WorkerShare


def _spread(metrics):
    """Quantiles around the finite means."""
    finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
    quantiles = {n: {"0.1": 0.8 * v, "0.5": v, "0.9": 1.02 * v} for n, v in finite.items()}
    return {"quantiles": quantiles}


def history(
    rounds,
    *,
    abandoned=(),
    diverged_from=None,
    virtual=True,
    test_every=1,
    workers=2,
    cohort=10,
    seed=0,
    spread=False,
):
    """Records of a simulation that learns."""
    generator = np.random.default_rng(seed)
    records, trained, wall_s, virtual_s = [], 0, 0.0, 0.0
    for number in range(1, rounds + 1):
        lost = int(generator.binomial(cohort, 0.1))
        round_s = 1.0 + float(generator.random())
        wall_s, virtual_s = wall_s + round_s, virtual_s + 60 * round_s
        given_up = number in abandoned
        trained += not given_up
        accuracy = 0.97 * (1 - math.exp(-number / 12))
        loss = math.nan if diverged_from and number >= diverged_from else 2.3 * (1 - accuracy)
        metrics = {"accuracy": accuracy, "loss": loss}
        records.append(
            RoundRecord(
                round=number,
                trained=trained,
                kind="train",
                state="abandoned" if given_up else "committed",
                reason="Too few clients reported." if given_up else "",
                cohort=cohort,
                accepted=0 if given_up else cohort - lost,
                counts={"reported": cohort - lost, "lost": lost},
                examples=0 if given_up else 600 * (cohort - lost),
                training={} if given_up else metrics,
                spread={"training": _spread(metrics)} if spread and not given_up else {},
                test=metrics if number % test_every == 0 and not given_up else {},
                bytes_down=800_000 * (cohort - lost),
                bytes_up=200_000 * (cohort - lost),
                virtual_s=virtual_s if virtual else None,
                wall_s=wall_s,
                round_wall_s=round_s,
                clients_per_s=0.0 if given_up else (cohort - lost) / round_s,
                shares=tuple(
                    WorkerShare(
                        worker=f"worker {place + 1} (cpu)",
                        clients=cohort // workers,
                        busy_s=round_s * 0.9**place,
                    )
                    for place in range(workers)
                ),
            )
        )
    return tuple(records)


def result(records, *, folder=None, engine="resident: chosen for the tests", stopped=""):
    """An ended simulation with these records."""
    params = {"weight": np.arange(6, dtype=np.float32).reshape(2, 3)}
    return Result(
        records=tuple(records),
        params=params,
        digest="ab" * 32,
        folder=folder,
        engine=engine,
        stopped=stopped,
    )
