"""A module of the standard library as one other module sees it, changed for that one alone.

Changed in its own place it would be another one for every thread of the process, also for those
that an earlier test has left.
"""

from types import SimpleNamespace


def like(module, **changed):
    """What stands for a module where it was imported, with some of its functions replaced."""
    return SimpleNamespace(**{**vars(module), **changed})
