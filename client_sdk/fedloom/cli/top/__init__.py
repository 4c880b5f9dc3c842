"""`fedloom top`: a live view of a server in the terminal.

`facts` reads the server's state, `frame` draws it as lines of text, `terminal` writes lines and
reads keys, and `screen` connects them. Only the last two use clocks and devices.
"""
