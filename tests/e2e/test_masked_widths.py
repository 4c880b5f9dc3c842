"""Masked rounds of devices with narrow models: each session is of one width that names draw."""

import asyncio

import numpy as np
import pytest

from fedloom.protocol.errors import Code
from fedloom.protocol.updates.masked_parts import to_parts
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.engine import SessionState
from fedloom.strategies import Slice
from support import masked_widths
from support.agents import result, submit
from support.federation import Federation
from support.masked_devices import AGREEMENT, BODY, REVEAL, SHARES, Device
from support.masked_sums import ZEROS
from support.masked_widths import NARROW, RUN, device, mean_of, width_of

pytestmark = pytest.mark.e2e

SHORT = RUN | {"masking": RUN["masking"] | {"phase_s": 3.0, "upload_s": 3.0}}
LATE = RUN | {"masking": RUN["masking"] | {"phase_s": 20.0, "upload_s": 4.0}}
"""For one body that never comes."""
OTHER = {"weight": ((2, 5), (0, 7))}
"""As many values as `NARROW` has, and others."""


class Lies(Device):
    """Says that it has another width than its name draws."""

    def coverage(self, width):
        return super().coverage(1.5 - width)


def played(tmp_path, members, settings, *, twist=None):
    """Play one round; returns its row, its model, its sessions and its cohort."""

    async def play():
        federation = await Federation(tmp_path).start()
        devices = {name: make(federation, name) for name, make in members.items()}
        try:
            if twist is not None:
                twist(devices)
            run = await submit(federation, ZEROS, **settings)
            for each in devices.values():
                each.start()
            await federation.ended(run)
            ledger = federation.ledger
            phases = {m.client: (m.phase, m.reason) for m in ledger.cohort(run, 1)}
            row, sessions = ledger.run(run), ledger.sessions(run, 1)
            return row, result(federation, run), sessions, phases, devices
        finally:
            for each in devices.values():
                await each.stop()
            await federation.stop()

    return asyncio.run(play())


def of(whole, narrow):
    return dict.fromkeys(masked_widths.names(whole, narrow), device)


def late(*cases):
    """Cases of `make long` alone."""
    return [pytest.param(*case, marks=pytest.mark.long) for case in cases]


def check_model(model, counted):
    wanted = mean_of(counted)
    for name in ZEROS:
        assert model[name].tobytes() == wanted[name].tobytes(), name


@pytest.mark.parametrize(
    ("stops", "bits"), [(BODY, 64), *late((SHARES, 64), (AGREEMENT, 64), (REVEAL, 32), ("", 32))]
)
def test_each_value_is_the_mean_of_the_devices_that_cover_it(tmp_path, stops, bits):
    """Two sessions, of one width each, of both of which a member may drop out."""
    members = of(4, 4)

    def twist(devices):
        for name in list(devices)[::4]:
            devices[name].stops = stops or None

    settings = SHORT | {"masking": SHORT["masking"] | {"sum_bits": bits, "precision": 1e-3}}
    row, model, sessions, phases, devices = played(tmp_path, members, settings, twist=twist)
    assert row.state == "finished", row.reason
    gone = list(devices)[::4] if stops in (BODY, SHARES) else []
    counted = [each for name, each in devices.items() if name not in gone]
    check_model(model, counted)
    assert {name for name, (phase, _) in phases.items() if phase == "reported"} == {
        each.name for each in counted
    }
    assert [s.state for s in sessions] == [SessionState.DONE] * 2
    assert sorted(s.width_class.partition(":")[0] for s in sessions) == ["0.5", "1.0"]
    for session in sessions:
        assert len({width_of(member) for member in session.members}) == 1


@pytest.mark.parametrize(("whole", "narrow"), [(4, 2), *late((2, 5))])
def test_a_width_of_too_few_devices_sits_the_round_out(tmp_path, whole, narrow):
    """They are told; where the whole models are missing, values that none covers stay."""
    row, model, sessions, phases, devices = played(
        tmp_path, of(whole, narrow), RUN | {"cohort": RUN["cohort"] | {"goal": whole + narrow}}
    )
    assert row.state == "finished", row.reason
    counts = 1.0 if whole > narrow else 0.5
    check_model(model, [each for name, each in devices.items() if width_of(name) == counts])
    assert len(sessions) == 1
    for name, each in devices.items():
        assert bool(each.withdrawn) == (width_of(name) != counts)
        assert (phases[name][0] == "reported") == (width_of(name) == counts)
    if counts < 1:
        assert not model["weight"][3:].any()


@pytest.mark.parametrize("narrow", [False, *late((True,))])
def test_a_device_that_states_a_width_of_its_own_is_refused(tmp_path, narrow):
    """Its name draws another; the round goes on without it."""
    members = of(4, 4)
    liar = next(name for name in members if (width_of(name) < 1) == narrow)
    members[liar] = lambda federation, name: device(federation, name, Lies)
    row, model, _, phases, devices = played(tmp_path, members, SHORT)
    assert row.state == "finished", row.reason
    check_model(model, [each for each in devices.values() if each.name != liar])
    assert phases[liar][0] == "failed"
    assert f"as the name {liar} has it" in phases[liar][1]


@pytest.mark.long
@pytest.mark.parametrize(
    ("header", "code"),
    [
        (lambda h: h.parts.pop(), Code.MASKING_REFUSED),
        *late(
            (lambda h: _covers(h, OTHER), Code.MASKING_REFUSED),
            (lambda h: _covers(h, {"weight": ((0, 9), (0, 7))}), Code.MASKING_REFUSED),
            (lambda h: setattr(h.parts[0], "values", "x"), Code.MALFORMED),
            (lambda h: h.parts.append(h.parts[0]), Code.MALFORMED),
            (lambda h: setattr(h.parts[0], "tensor", "bias"), Code.MASKING_REFUSED),
            (lambda h: h.parts[0].full.SetInParent(), Code.MALFORMED),
        ),
    ],
)
def test_a_body_with_other_slices_than_its_class_is_refused(tmp_path, header, code):
    """It would be added in another place; its session goes on without it."""
    members = of(4, 4)
    liar = next(name for name in members if width_of(name) < 1)

    def changed(found):
        copy = fleet_pb2.UpdateHeader()
        copy.CopyFrom(found)
        header(copy)
        return copy

    def twist(devices):
        devices[liar].twists["header"] = changed

    row, model, _, _, devices = played(tmp_path, members, LATE, twist=twist)
    assert row.state == "finished", row.reason
    check_model(model, [each for each in devices.values() if each.name != liar])
    assert {answer.code for answer in devices[liar].answers} == {code}


def _covers(header, slices):
    del header.parts[:]
    header.parts.extend(to_parts({("delta", n): Slice(box) for n, box in slices.items()}))


@pytest.mark.long
def test_a_whole_update_does_not_say_that_it_is_narrow(tmp_path):
    """Nor does a device of the whole width that has slices in its header."""
    members = of(4, 4)
    liar = next(name for name in members if width_of(name) == 1)

    def changed(found):
        copy = fleet_pb2.UpdateHeader()
        copy.CopyFrom(found)
        _covers(copy, NARROW)
        return copy

    def twist(devices):
        devices[liar].twists["header"] = changed

    row, model, _, _, devices = played(tmp_path, members, SHORT, twist=twist)
    assert row.state == "finished", row.reason
    check_model(model, [each for each in devices.values() if each.name != liar])
    assert {answer.code for answer in devices[liar].answers} == {Code.MASKING_REFUSED}


@pytest.mark.parametrize("box", [OTHER, *late(({"weight": ((0, 9), (0, 7))},), ({},))])
def test_a_device_that_cuts_otherwise_is_in_no_session_of_the_others(tmp_path, box):
    """Its class has the digest of its slices, and too few have these."""
    members = of(4, 4)
    odd = next(name for name in members if width_of(name) < 1)
    members[odd] = lambda federation, name: device(federation, name, slices=box)
    row, model, sessions, _, devices = played(tmp_path, members, RUN)
    assert row.state == "finished", row.reason
    check_model(model, [each for each in devices.values() if each.name != odd])
    assert not any(odd in session.members for session in sessions)
    assert devices[odd].withdrawn


@pytest.mark.long
def test_an_evaluation_has_no_classes(tmp_path):
    """Devices of all widths measure the whole model, in one session."""
    settings = RUN | {"evaluate_only": True}
    row, model, sessions, phases, _ = played(tmp_path, of(3, 2), settings | {
        "cohort": RUN["cohort"] | {"goal": 5},
    })  # fmt: skip
    assert row.state == "finished", row.reason
    assert [s.width_class for s in sessions] == [""]
    assert {phase for phase, _ in phases.values()} == {"reported"}
    assert not any(np.any(value) for value in model.values())
