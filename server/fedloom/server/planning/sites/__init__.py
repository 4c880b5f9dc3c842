"""Runs whose clients are sites, which sum the updates of their devices: checks and admission."""
