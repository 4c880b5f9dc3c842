"""What both ends of the wire share: messages, the tensor container, checks, identities, errors."""
