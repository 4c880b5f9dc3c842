"""`fedloom top`: a server on one screen, live.

`facts` asks the server, `frame` draws what is known as lines of text, `terminal` paints lines and
reads keys, and `screen` holds them together. Only the last two know of time and of devices.
"""
