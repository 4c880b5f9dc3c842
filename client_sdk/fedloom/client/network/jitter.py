"""Chance that spreads a fleet's calls over time.

It comes from the machine: training code that seeds Python's own generator alike on every device
would bring them all back at the same moment, and must not find its numbers drawn by an agent.
"""

from random import SystemRandom

JITTER = SystemRandom()
