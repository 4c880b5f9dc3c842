"""Algorithms with a client rule or state of their own, each after its paper."""
