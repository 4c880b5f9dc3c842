"""Who is asked: policies that draw a cohort from the candidates and from what is known of them.

Start at `base`, which says what a policy is given and gives. `history` is where what is known comes
from.
"""

from typing import TYPE_CHECKING

from fedloom.strategies.lazy_imports import exports

if TYPE_CHECKING:
    from fedloom.strategies.selection.base import (
        Fact,
        Known,
        Occasion,
        Places,
        Selection,
        metrics_of,
        settings_of,
    )
    from fedloom.strategies.selection.draws import smallest
    from fedloom.strategies.selection.history import History, Observation
    from fedloom.strategies.selection.oort import Oort
    from fedloom.strategies.selection.power_of_choice import PowerOfChoice
    from fedloom.strategies.selection.roster import Attendance, Candidates, Roster
    from fedloom.strategies.selection.simple import BySize, Deadline, Sticky, Uniform
    from fedloom.strategies.selection.stratified import Stratified

__getattr__ = exports(
    __name__,
    {
        "base": "Fact Known Occasion Places Selection metrics_of settings_of",
        "draws": "smallest",
        "history": "History Observation",
        "oort": "Oort",
        "power_of_choice": "PowerOfChoice",
        "roster": "Attendance Candidates Roster",
        "simple": "BySize Deadline Sticky Uniform",
        "stratified": "Stratified",
    },
)

__all__ = [
    "Attendance",
    "BySize",
    "Candidates",
    "Deadline",
    "Fact",
    "History",
    "Known",
    "Observation",
    "Occasion",
    "Oort",
    "Places",
    "PowerOfChoice",
    "Roster",
    "Selection",
    "Sticky",
    "Stratified",
    "Uniform",
    "metrics_of",
    "settings_of",
    "smallest",
]
