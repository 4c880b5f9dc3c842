"""A site at the door of its parent: lies are refused by name, and do not disturb the round."""

import asyncio
import time

import numpy as np
import pytest

from fedloom.protocol.errors import Code
from fedloom.protocol.tensors.container import write_file
from fedloom.protocol.trust import tokens
from fedloom.protocol.updates.site_sum import write_site_sum
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.planning import limits
from fedloom.server.planning.spec import parse
from fedloom.strategies import DELTA, Full, weight_units
from support.federation import Federation, upload

pytestmark = pytest.mark.e2e

SPEC = {
    "rounds": 1,
    "evaluate": False,
    "sites": True,
    "max_abs": 8.0,
    "max_weight": 10.0,
    "cohort": {"goal": 3, "quorum": 3, "deadline_s": 300.0},
    "train": {"epochs": 1, "batch_size": 4, "learning_rate": 0.1},
}
MODEL = {"w": np.zeros((20, 3), np.float32)}


def site_identity(federation, name, devices):
    """A site in the ledger, as after an enrolment by a token for so many devices."""
    identity, peer = federation.forge(name)
    token = tokens.make_token(federation.authority.root_pin)
    hashed = tokens.secret_hash(token.secret)
    federation.ledger.add_token(token.id, hashed, name, time.time() + 600, devices=devices)
    federation.ledger.enrol(token.id, peer.serial, peer.not_after.timestamp())
    federation.contexts.fleet.register_site(name, federation.ledger.sites()[name])
    return identity


def update(federation, offer, path, *, devices=3, scale=1.0, spec=SPEC):
    """The header and the body of a sum for an offer."""
    manifest = federation.contexts.models.manifest(offer.model.digest)
    partial = limits.empty_sum(parse(spec), manifest)
    for _ in range(devices):
        values = np.full((20, 3), scale, np.float32)
        partial.add_array((DELTA, "w"), Full(), weight_units(2), values)
        partial.count += 1
    header = fleet_pb2.UpdateHeader(
        task=offer.key, client="north", model_digest=offer.model.digest, weight=2.0 * devices
    )
    header.site.devices = header.site.updates = devices
    write_site_sum(path, partial, header)
    return header, path.read_bytes()


async def opened(directory, devices=3, spec=SPEC):
    """A federation with a site and a run; the site's offer, and a channel of it."""
    federation = await Federation(directory).start()
    identity = site_identity(federation, "north", devices)
    path = directory / "model.safetensors"
    write_file(path, MODEL)
    run = await federation.server.runs.submit(spec, federation.contexts.models.add(path))
    attendance = await federation.attend(identity)
    return federation, attendance, federation.channel(identity), run


LIES = {
    "exponent": ({"spec": {**SPEC, "max_abs": 4.0}}, None, Code.MALFORMED, "exponent"),
    "devices": ({"devices": 4}, None, Code.WEIGHT_OUT_OF_RANGE, "1 to 3 devices"),
    "magnitude": ({"scale": 9.0}, None, Code.MAGNITUDE_TOO_LARGE, "'w'"),
    "weight": ({}, lambda h: setattr(h, "weight", 31.0), Code.WEIGHT_OUT_OF_RANGE, "weight"),
    "tensor": ({}, lambda h: setattr(h.parts[0], "tensor", "v"), Code.UNKNOWN_TENSOR, "'v'"),
    "model": ({}, lambda h: setattr(h, "model_digest", "0" * 64), Code.WRONG_MODEL, "model"),
    "updates": ({}, lambda h: setattr(h.site, "updates", 4), Code.MALFORMED, "got 4"),
    "names": ({}, lambda h: h.site.members.add(name="one", devices=4), Code.MALFORMED, "3 devices"),
    "a device's update": ({}, lambda h: h.ClearField("site"), Code.MALFORMED, "sum of a site"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_site_is_refused_by_name(tmp_path, lie):
    """And the refusal is stored with the site's name and its code."""
    settings, change, code, words = LIES[lie]

    async def scenario():
        federation, attendance, channel, run = await opened(tmp_path)
        try:
            offer = await attendance.offer_of(run)
            assert offer.site.devices == 3
            header, body = update(federation, offer, tmp_path / "body", **settings)
            if change is not None:
                change(header)
            answer = await upload(channel, header, [body])
            assert (answer.code, words in answer.message) == (code, True), answer
            await federation.settled()
            [refusal, *_] = federation.refusals(run)
            assert (refusal.client, refusal.code) == ("north", code)
        finally:
            await federation.stop()

    asyncio.run(scenario())


def test_a_sum_above_a_registration_that_was_lowered_is_refused(tmp_path):
    """Though the task was for more devices."""

    async def scenario():
        federation, attendance, channel, run = await opened(tmp_path)
        try:
            offer = await attendance.offer_of(run)
            federation.contexts.fleet.register_site("north", 2)
            header, body = update(federation, offer, tmp_path / "body")
            answer = await upload(channel, header, [body])
            assert (answer.code, "1 to 2 devices" in answer.message) == (
                Code.WEIGHT_OUT_OF_RANGE, True,
            )  # fmt: skip
        finally:
            await federation.stop()

    asyncio.run(scenario())


def test_a_true_sum_is_counted_by_its_devices(tmp_path):
    """One sum of three devices reaches a goal of three."""

    async def scenario():
        federation, attendance, channel, run = await opened(tmp_path)
        try:
            offer = await attendance.offer_of(run)
            header, body = update(federation, offer, tmp_path / "body")
            answer = await upload(channel, header, [body[:100], body[100:]])
            assert answer.code is None, answer
            again = await upload(channel, header, [body])
            assert again.replies[0].accepted.repeated
            await federation.ended(run)
            [row] = federation.ledger.list_rounds(run)
            assert (row.state, row.accepted) == ("committed", 3)
            model = federation.contexts.models.params(row.model_out)
            np.testing.assert_array_equal(model["w"], np.ones((20, 3), np.float32))
        finally:
            await federation.stop()

    asyncio.run(scenario())


def test_a_restarted_parent_keeps_places_and_counts(tmp_path):
    """The site gets the same task again, for as many devices."""

    async def scenario():
        federation, attendance, _, run = await opened(tmp_path)
        try:
            first = await attendance.offer_of(run)
            await federation.restart()
            assert federation.contexts.fleet.devices_of("north") == 3
            [member] = federation.ledger.cohort(run, 1)
            assert (member.client, member.places) == ("north", 3)
            engine = federation.server.runs.get(run).round.engine
            assert engine.cohort.places == {"north": first.site.devices}
        finally:
            await federation.stop()

    asyncio.run(scenario())


def test_sites_and_devices_get_tasks_of_their_own_runs(tmp_path):
    """A run for devices does not ask a site, nor the other way round."""

    async def scenario():
        federation, attendance, _, run = await opened(tmp_path)
        try:
            await attendance.offer_of(run)
            device = await federation.attend(federation.enrol("ward"))
            flat = {**SPEC, "sites": False, "cohort": {"goal": 1}}
            model = federation.ledger.run(run).model
            other = await federation.server.runs.submit(flat, model)
            assert not (await device.offer_of(other)).HasField("site")
            [member] = federation.ledger.cohort(run, 1)
            assert member.client == "north"
        finally:
            await federation.stop()

    asyncio.run(scenario())


MASKED = {
    **SPEC,
    "evaluate": True,
    "max_abs": 1.0,
    "cohort": {"goal": 6, "quorum": 6, "deadline_s": 300.0},
    "masking": {
        "group": 6, "min_group": 4, "sum_bits": 32, "precision": 1e-4, "metrics": {"loss": 10.0},
    },
}  # fmt: skip
NOISY = {
    **MASKED,
    "evaluate": False,
    "masking": {"group": 6, "min_group": 4, "sum_bits": 32},
    "weighting": "uniform",
    "privacy": {
        "mechanism": "distributed", "clip": 0.5, "noise_multiplier": 2.0, "delta": 1e-5,
    },
}  # fmt: skip


def loss(header, product, examples=12.0, num_examples=12):
    """Losses that a site says its devices had in training."""
    header.site.training.num_examples = num_examples
    header.site.training.values["loss"].products.append(product)
    header.site.training.values["loss"].weights.append(examples)


MASKED_LIES = {
    "devices": (
        {"devices": 2, "scale": 0.5}, None, Code.WEIGHT_OUT_OF_RANGE, "at least 3 devices",
    ),
    "magnitude": ({"scale": 1.1}, None, Code.MAGNITUDE_TOO_LARGE, "'w'"),
    "loss": ({"scale": 0.5}, lambda h: loss(h, 120.1), Code.MAGNITUDE_TOO_LARGE, "training.loss"),
    "examples": (
        {"scale": 0.5}, lambda h: loss(h, 1.0, 61.0, 61), Code.MAGNITUDE_TOO_LARGE, "61 examples",
    ),
    "metric": (
        {"scale": 0.5},
        lambda h: h.site.training.MergeFrom(
            fleet_pb2.SiteMetrics(
                num_examples=3, values={"f1": fleet_pb2.SiteMetric(products=[0.5], weights=[3])}
            )
        ),
        Code.MALFORMED, "'f1'",
    ),
    "masks": (
        {"scale": 0.5}, lambda h: setattr(h, "masking_session", b"1"), Code.MALFORMED, "masking",
    ),
}  # fmt: skip


@pytest.mark.parametrize("lie", MASKED_LIES)
def test_a_site_that_lies_about_its_sessions_is_refused_by_name(tmp_path, lie):
    """It cannot say what no sessions of the run could give."""
    settings, change, code, words = MASKED_LIES[lie]

    async def scenario():
        federation, attendance, channel, run = await opened(tmp_path, 6, MASKED)
        try:
            offer = await attendance.offer_of(run)
            assert not offer.HasField("masking")
            header, body = update(
                federation, offer, tmp_path / "body", spec=MASKED, **{"devices": 6, **settings}
            )
            if change is not None:
                change(header)
            answer = await upload(channel, header, [body])
            assert (answer.code, words in answer.message) == (code, True), answer
        finally:
            await federation.stop()

    asyncio.run(scenario())


def test_a_sum_of_sessions_counts_with_its_means(tmp_path):
    """The means are those of the words."""

    async def scenario():
        federation, attendance, channel, run = await opened(tmp_path, 6, MASKED)
        try:
            offer = await attendance.offer_of(run)
            header, body = update(
                federation, offer, tmp_path / "body", spec=MASKED, devices=6, scale=0.5
            )
            loss(header, 6.0)
            answer = await upload(channel, header, [body])
            assert answer.code is None, answer
            committed = [r for r in federation.ledger.list_rounds(run) if r.state == "committed"]
            while not committed:
                await asyncio.sleep(0.01)
                committed = [
                    r for r in federation.ledger.list_rounds(run) if r.state == "committed"
                ]
            assert committed[0].training == {"num_examples": 12, "values": {"loss": 0.5}}
            model = federation.contexts.models.params(committed[0].model_out)
            np.testing.assert_array_equal(model["w"], np.full((20, 3), 0.5, np.float32))
        finally:
            await federation.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize(("sigmas", "accepted"), [(11.5, True), (12.5, False)])
def test_noise_beyond_the_clip_passes_to_twelve_deviations(tmp_path, sigmas, accepted):
    """In every coordinate; more is no noise. Oracle: the formula of the share, with h(4) = 2."""
    spec = parse(NOISY)
    steps = 0.5 * 2.0 ** spec.exponent() + 60**0.5 / 2  # clip and rounding of 60 values
    sigma = 2.0 * steps / 2**0.5
    largest = 6 * 0.5 * 2.0 ** spec.exponent() + 3 + sigmas * 6**0.5 * sigma

    async def scenario():
        federation, attendance, channel, run = await opened(tmp_path, 6, NOISY)
        try:
            offer = await attendance.offer_of(run)
            manifest = federation.contexts.models.manifest(offer.model.digest)
            partial = limits.empty_sum(spec, manifest)
            sums = np.full(60, round(largest), np.int64)
            partial.add_sums((DELTA, "w"), Full(), weight_units(1) * 6, sums)
            partial.count = 6
            header = fleet_pb2.UpdateHeader(
                task=offer.key, client="north", model_digest=offer.model.digest, weight=6.0
            )
            header.site.devices = header.site.updates = 6
            write_site_sum(tmp_path / "body", partial, header)
            answer = await upload(channel, header, [(tmp_path / "body").read_bytes()])
            assert (answer.code is None) == accepted, answer
            assert accepted or answer.code == Code.MAGNITUDE_TOO_LARGE
        finally:
            await federation.stop()

    asyncio.run(scenario())
