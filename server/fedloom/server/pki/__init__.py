"""The certificate authority and the keys of a federation."""
