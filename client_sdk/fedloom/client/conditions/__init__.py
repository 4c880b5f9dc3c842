"""When a device may train: on mains power, idle, cool, on a free network, at night.

Probes read the device (`linux`), `objection` decides over what they read, and `ConditionGate` asks
both before an offer is taken and while it is worked on.
"""

from fedloom.client.conditions.decision import Readings, objection
from fedloom.client.conditions.gate import ConditionGate
from fedloom.client.conditions.settings import Conditions

__all__ = ["ConditionGate", "Conditions", "Readings", "objection"]
