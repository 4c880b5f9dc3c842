"""The HTTP application and its listeners."""
