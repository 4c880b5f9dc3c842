"""The gRPC methods and settings of the connection between client and server.

Invariant: gRPC is imported after this package, as it reads its environment once, at its import.
"""

import os

# The system's resolver: gRPC's own asks DNS even for names in the hosts file (15 s a connection
# where no DNS server answers) and does not resolve mDNS names (`hub.local`).
os.environ.setdefault("GRPC_DNS_RESOLVER", "native")
# Training code may fork workers. They never use gRPC, whose own fork handlers abort some of them.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# Its core prints a line for each handshake that fails, which strangers can have it repeat: 6,911
# in seconds. `info` or `debug` shows them.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
# TLS 1.3 only, since TLS 1.2 sends certificates in clear. gRPC has no setting for the version, but
# this one names the cipher suites of TLS 1.2: the only one left needs a key that nobody has.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-PSK-CHACHA20-POLY1305"
