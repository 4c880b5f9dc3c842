"""Operators: their accounts, sessions and API tokens."""
