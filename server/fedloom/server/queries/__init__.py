"""Reads that JSON routes and console pages share, with typed results."""
