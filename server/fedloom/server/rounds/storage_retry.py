"""What to do when the disk or the database fails: wait and try again, or say so and go on.

A disk that is full today loses nobody's update.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from sqlalchemy.exc import OperationalError, SQLAlchemyError

log = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 30.0
"""Between tries of a step that the disk or the database made fail."""


async def patiently(step: Callable[[], Awaitable[T]], who: str, extra: dict[str, Any]) -> T:
    """Do a step, as often as it takes.

    Args:
        step: it may be done again, wherever it failed.
        who: waits for it, as the log says.
        extra: what the log's lines are about.
    """
    wait_s = FIRST_WAIT_S
    while True:
        try:
            return await step()
        except (OSError, OperationalError) as error:
            why = getattr(error, "orig", error)
            log.error(  # noqa: TRY400 - a traceback tells an operator nothing here
                "%s waits for its storage, next try in %.0f s: %s", who, wait_s, why, extra=extra
            )
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, LONGEST_WAIT_S)


async def or_log(storing: Awaitable[None], what: str) -> None:
    """Store what the console shows, which is worth no round: a full disk is said, and that is all.

    Args:
        storing: it.
        what: it is, as the log says.
    """
    try:
        await storing
    except SQLAlchemyError as error:
        log.warning("%s is not in the ledger: %s", what, type(error).__name__)
