"""A FAB names a ServerApp; here the server runs the rounds."""

from flwr.serverapp import ServerApp

app = ServerApp()
