"""Rounds of a parent server, which this server holds for its devices as a site."""
