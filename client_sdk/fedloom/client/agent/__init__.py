"""The running agent: tasks, training, state directory and health."""
