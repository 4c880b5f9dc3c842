"""Windows of local time: `22:00-06:00`, `mon-fri 22:00-06:00`, `sat sun`, `sun,wed 12:00-13:00`.

A window that ends before it begins extends past midnight and belongs to the day of its beginning.
"""

import re
from dataclasses import dataclass
from datetime import datetime

from fedloom.protocol.errors import UsageError

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_HOURS = re.compile(r"(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})$")
_MINUTES = 24 * 60


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """Hours of some weekdays.

    Attributes:
        text: as written.
        days: weekdays, 0 for Monday.
        begin: minutes after midnight.
        end: minutes after midnight; on the next day if not after `begin`. 24 h: the whole day.
    """

    text: str
    days: frozenset[int]
    begin: int
    end: int

    @classmethod
    def parse(cls, text: str) -> "TimeWindow":
        """Parse a window.

        Raises:
            UsageError: the text is not a window.
        """
        found = _HOURS.search(text.strip().lower())
        rest = text.strip().lower()[: found.start()] if found else text.strip().lower()
        begin, end = _hours(text, found) if found else (0, _MINUTES)
        days = {day for part in re.split(r"[,\s]+", rest) if part for day in _days(text, part)}
        if not days and not found:
            raise _wrong(text)
        return cls(text, frozenset(days or range(7)), begin, end)

    def holds(self, now: datetime) -> bool:
        """Whether a local time is inside."""
        minute, day = now.hour * 60 + now.minute, now.weekday()
        if self.begin < self.end:
            return day in self.days and self.begin <= minute < self.end
        tonight = day in self.days and minute >= self.begin
        last_night = (day - 1) % 7 in self.days and minute < self.end
        return tonight or last_night


def _hours(text: str, found: "re.Match[str]") -> tuple[int, int]:
    hour, minute, until, past = map(int, found.groups())
    begin, end = hour * 60 + minute, until * 60 + past
    if minute > 59 or past > 59 or begin >= _MINUTES or end > _MINUTES or begin == end:
        raise _wrong(text)
    return begin, end


def _days(text: str, part: str) -> list[int]:
    first, dash, last = part.partition("-")
    if first not in DAYS or (dash and last not in DAYS):
        raise _wrong(text)
    begin, end = DAYS.index(first), DAYS.index(last or first)
    return [(begin + i) % 7 for i in range((end - begin) % 7 + 1)]


def _wrong(text: str) -> UsageError:
    return UsageError(
        f'Expected a window like "22:00-06:00", "mon-fri 22:00-06:00" or "sat sun", got {text!r}.'
    )
