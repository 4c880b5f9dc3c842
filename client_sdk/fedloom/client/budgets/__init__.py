"""What a device may be used for at most: threads, priority, memory, disk, bandwidth, time."""

from fedloom.client.budgets.gate import BudgetGate, room_beside
from fedloom.client.budgets.pace import Pace
from fedloom.client.budgets.settings import Budgets

__all__ = ["BudgetGate", "Budgets", "Pace", "room_beside"]
