"""The masking sessions of masked rounds, and their messages."""
