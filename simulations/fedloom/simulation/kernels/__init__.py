"""Kernels: the ways in which one worker trains its clients, behind one interface."""
