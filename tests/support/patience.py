"""Time limit of tests that wait for a condition."""

PATIENCE_S = 120.0
"""Longest wait for anything, also on a slow and busy machine: only a test that fails takes it."""
