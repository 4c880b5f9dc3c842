"""Masked tasks on a device: from a trained update to its part in a sum; secrets stay in memory.

Imported only where a masked task comes.
"""
