"""A client update on the wire: its header, its body, its compression, and its addends."""
