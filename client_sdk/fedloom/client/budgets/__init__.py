"""Limits of the resources that training may use: threads, memory, disk, bandwidth, time."""

from fedloom.client.budgets.gate import BudgetGate, room_beside
from fedloom.client.budgets.pace import Pace
from fedloom.client.budgets.settings import Budgets

__all__ = ["BudgetGate", "Budgets", "Pace", "room_beside"]
