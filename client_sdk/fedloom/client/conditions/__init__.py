"""Conditions of the device for training: mains power, idle CPU, temperature, network, local time.

Probes read the device (`linux`), `objection` decides from their readings, and `ConditionGate` uses
both before an offer is accepted and while its task runs.
"""

from fedloom.client.conditions.decision import Readings, objection
from fedloom.client.conditions.gate import ConditionGate
from fedloom.client.conditions.settings import Conditions

__all__ = ["ConditionGate", "Conditions", "Readings", "objection"]
