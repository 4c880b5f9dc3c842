"""What to make of what the server knows: curves, pace, what needs an operator. Pure functions."""
