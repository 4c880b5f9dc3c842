"""Reads that JSON routes and console pages share: from ledger, fleet and rounds to typed results."""
