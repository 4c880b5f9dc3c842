"""What one try at masking a round is about, and the least that a device's owner accepts."""

from dataclasses import dataclass
from typing import Final

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.masking.encoding import protocol_id, width_class
from fedloom.strategies.masking.sessions import LEAST_GROUP, MAX_GROUP
from fedloom.strategies.partial_work import PartialWork

MAX_ATTEMPTS: Final = 3
"""Times that a client may announce itself for one round, with fresh keys each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTerms:
    """One try at masking one round.

    Attributes:
        federation: its name.
        run: id of the run.
        round: its number.
        attempt: the server's number of this try, from 1 to `MAX_ATTEMPTS`.
        core: `core.task_core`: H of all that members must agree on, `group` included.
        group: most members of a session, to `MAX_GROUP`.
        widths: the settings by which names draw widths; None: all updates cover the same.

    Raises:
        ValueError: `attempt` or `group` is out of range.
    """

    federation: str
    run: str
    round: int
    attempt: int
    core: bytes
    group: int
    widths: PartialWork | None = None

    def __post_init__(self) -> None:
        if not LEAST_GROUP <= self.group <= MAX_GROUP:
            raise ValueError(f"Expected {LEAST_GROUP} <= group <= {MAX_GROUP}, got {self.group}.")
        if not 1 <= self.attempt <= MAX_ATTEMPTS:
            raise ValueError(f"Expected 1 <= attempt <= {MAX_ATTEMPTS}, got {self.attempt}.")

    @property
    def pid(self) -> bytes:
        """The id of the try."""
        return protocol_id(self.federation, self.run, self.round, self.attempt, self.core)

    def width(self, client: str) -> float | None:
        """The width that a name draws; None where all updates cover the same."""
        return None if self.widths is None else self.widths.width(client)

    def check_class(self, client: str, coverage: str) -> None:
        """Check that a client states the class of its name; of width 1, it has no slices.

        Raises:
            Refusal: MASKING_REFUSED, its name draws another width.
        """
        width = self.width(client)
        if width is None or width == 1:
            fits = coverage == ("" if width is None else width_class(width, {}))
        else:
            fits = coverage.startswith(f"{width!r}:")
        if not fits:
            wanted = "of the whole model" if width is None else f"of the width {width:g}"
            raise Refusal(
                Code.MASKING_REFUSED,
                f"Expected an update {wanted}, as the name {client} has it in this round, got one "
                f"of the class {coverage!r}.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskingFloors:
    """The least that a device's owner accepts; the server cannot lower it.

    Attributes:
        min_group: fewest members of a session.
        min_ready: fewest signed adverts in the list that sessions are drawn from. 0: the server may
            show one session of its choice.
        peers: public keys of the only members that are accepted, as DER SubjectPublicKeyInfo; None:
            any member with a certificate of the federation.

    Raises:
        ValueError: `min_group` is below `LEAST_GROUP`.
    """

    min_group: int = 16
    min_ready: int = 0
    peers: frozenset[bytes] | None = None

    def __post_init__(self) -> None:
        if self.min_group < LEAST_GROUP:
            raise ValueError(f"Expected min_group >= {LEAST_GROUP}, got {self.min_group}.")
