"""Errors of the disk or the database: retry until success, or log and continue.

No update is lost while a disk is full for a time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from sqlalchemy.exc import OperationalError, SQLAlchemyError

log = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 30.0
"""Seconds between attempts of a step whose storage failed."""


async def retry_storage(step: Callable[[], Awaitable[T]], who: str, extra: dict[str, Any]) -> T:
    """Perform an idempotent step; repeat it while its storage fails.

    `who` owns it, and `extra` is the context of the log lines.
    """
    wait_s = FIRST_WAIT_S
    while True:
        try:
            return await step()
        except (OSError, OperationalError) as error:
            why = getattr(error, "orig", error)
            log.error(  # noqa: TRY400 - the traceback does not help an operator here
                "%s waits for its storage, next try in %.0f s: %s", who, wait_s, why, extra=extra
            )
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, LONGEST_WAIT_S)


async def store_or_log(storing: Awaitable[None], what: str) -> None:
    """Store values for the console; a failure is only logged, and no round waits for it."""
    try:
        await storing
    except SQLAlchemyError as error:
        log.warning("%s is not in the ledger: %s", what, type(error).__name__)
