"""A module of the standard library, changed for one importing module only.

A change of the module itself would affect every thread of the process, also those of earlier tests.
"""

from types import SimpleNamespace


def like(module, **changed):
    """A replacement of an imported module, with some functions replaced."""
    return SimpleNamespace(**{**vars(module), **changed})
