"""Server optimizers and learning-rate schedules."""
