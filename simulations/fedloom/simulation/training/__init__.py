"""The training of simulated rounds: the simulator, checkpoints, memory and attacks."""
