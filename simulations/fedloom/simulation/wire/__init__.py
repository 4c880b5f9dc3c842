"""An experiment over the wire: a real server and client processes on loopback."""
