"""Algorithms with their own client rule or state, each after its paper."""
