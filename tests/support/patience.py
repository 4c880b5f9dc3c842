"""How long tests wait for what is about to happen."""

PATIENCE_S = 120.0
"""Longest wait for anything, also on a slow and busy machine: only a test that fails takes it."""
