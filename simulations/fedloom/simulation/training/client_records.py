"""The records of the clients of a round, for `on_client`."""

from fedloom.server.engine import Phase
from fedloom.simulation.output.history import ClientRecord
from fedloom.simulation.training.round_trainer import Next, Trained, Trainer


def client_records(
    trainer: Trainer, what: Next, done: Trained, *, is_private: bool
) -> list[ClientRecord]:
    """The members of a round's cohort in the order of joining, then clients of earlier tasks.

    Args:
        trainer: of the round.
        what: the round.
        done: as it was played and trained.
        is_private: whether metrics stay on the clients.
    """
    names, play = trainer.experiment.population.names, done.play
    places = {name: place for place, name in enumerate(names)}
    reports = {names[report.client]: report for report in done.reports}
    down = trainer.bytes_down(what, done)
    up: dict[int, int] = {}
    for place, size in trainer.bytes_up(what, done):  # a buffer may get two updates of one client
        up[place] = up.get(place, 0) + size
    accepted_s = dict(zip(play.accepted, play.accepted_s, strict=False))  # empty without devices
    members = {**play.phases, **dict.fromkeys(reports.keys() - play.phases.keys(), Phase.REPORTED)}
    records = []
    for name in [*play.phases, *sorted(members.keys() - play.phases.keys())]:
        report, place = reports.get(name), places[name]
        training = None if report is None or is_private else report.training
        evaluation = None if report is None or is_private else report.evaluation
        records.append(
            ClientRecord(
                client=name,
                round=what.number,
                kind=what.kind.value,
                phase=members[name].value,
                counted=report is not None and done.committed,
                reason=done.refused.get(place, ""),
                staleness=what.number - done.asked_in.get(place, what.number),
                num_examples=0 if training is None else training.num_examples,
                training={} if training is None else training.metrics,
                evaluated=0 if evaluation is None else evaluation.num_examples,
                evaluation={} if evaluation is None else evaluation.metrics,
                bytes_down=down.get(place, 0),
                bytes_up=up.get(place, 0),
                offered_s=play.offered_s.get(name),
                accepted_s=accepted_s.get(name),
                seconds=0.0 if report is None else report.seconds,
            )
        )
    return records
