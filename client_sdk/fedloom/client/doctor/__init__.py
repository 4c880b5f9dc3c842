"""The doctor: checks everything that a device needs, and says how to fix what fails.

It changes nothing, accepts no task and does not disturb a running agent, so it may run at any time,
also while the server is down.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fedloom.client import config as settings
from fedloom.client.api import Client
from fedloom.client.config import ClientConfig
from fedloom.client.doctor import code as codes
from fedloom.client.doctor import device, identity, network
from fedloom.client.doctor.finding import CheckResult, Level, fail, ok, skip
from fedloom.client.state.identity_files import ENROL, StoredIdentity
from fedloom.protocol.errors import Refusal, UnavailableError, UsageError

__all__ = ["CheckResult", "Level", "examine"]


def examine(
    config: Path,
    client: Callable[[], Client] | None = None,
    model: Path | None = None,
    run: Mapping[str, Any] | None = None,
) -> Iterator[CheckResult]:
    """Check a device, one part after another.

    Args:
        config: path of its client.toml; environment variables may replace it.
        client: loads the training code; None skips its check.
        model: file of a model for the trial epoch.
        run: tables of a run.toml for it. Default: one epoch of FedAvg.
    """
    yield device.versions()
    found: ClientConfig | None = None
    try:
        read = settings.read(config)
        found = read.config
        source = config if config.exists() else "the environment"
        yield ok("settings", f"{source}, {len(read.sources)} set")
    except (UsageError, OSError) as error:
        yield fail("settings", str(error), "correct the settings; most other checks need them")
    yield codes.code(client, model, None if found is None else found.state_dir, run)
    if found is None:
        return
    yield device.disk(found)
    yield device.memory(found)
    yield device.policy(found)
    yield device.conditions(found)
    yield from _connection(found)


def _connection(config: ClientConfig) -> Iterator[CheckResult]:
    held = None
    if not config.plaintext:
        held, said = identity.held(config)
        yield said
    host, port = network.split(config.server)
    addresses, said = network.names(host)
    yield said
    reached = False
    if addresses:
        reached, said = network.route(host, port)
        yield said
    if (proxy := network.proxy(host)) is not None:
        yield proxy
    secure = True
    if reached and held is not None:
        said = network.tls(config, held)
        secure = said.level == "ok"
        yield said
    measured = None
    if reached and secure and (held is not None or config.plaintext):
        measured, said = _ask(config, held)
        yield said
    now = datetime.now(UTC)
    yield network.clock(measured, held, now)
    if held is not None:
        ahead_s = measured.ahead_s if measured else 0.0
        yield identity.certificate(held, config, now - timedelta(seconds=ahead_s))
        if reached:
            yield network.enrolment(config.enrolment)
    if measured is not None:
        yield network.bandwidth(measured, config, device.largest_model(config.state_dir))
    else:
        yield skip("bandwidth", "not measured: the server did not answer")


def _ask(
    config: ClientConfig, held: StoredIdentity | None
) -> tuple[network.LinkSpeed | None, CheckResult]:
    try:
        measured = network.measure(config, held)
    except Refusal as refusal:
        return None, fail("server", f"it refuses this client: {refusal}", ENROL)
    except UnavailableError as error:
        return None, fail(
            "server", str(error), "check the port in client.toml, then the server's log"
        )
    if measured is None:
        return None, ok("server", "it answers, but is too old to measure the connection")
    return measured, ok("server", f"it accepts this client, and answers in "
                        f"{1000 * measured.round_trip_s:.1f} ms")  # fmt: skip
