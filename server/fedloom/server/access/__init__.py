"""Authentication and scopes of operators."""
