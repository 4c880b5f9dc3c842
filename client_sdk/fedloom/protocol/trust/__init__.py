"""Identities, signatures, tokens and key files that both ends of the wire share."""
