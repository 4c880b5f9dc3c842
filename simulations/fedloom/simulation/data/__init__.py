"""The population of a simulation: clients, their data, and statistics of both."""
