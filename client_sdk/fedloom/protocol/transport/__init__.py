"""The gRPC methods and settings of the connection between client and server."""
