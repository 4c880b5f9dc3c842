"""What all commands share: options, output, confirmation, logging."""
