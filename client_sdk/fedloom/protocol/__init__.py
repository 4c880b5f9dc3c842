"""What both ends of the wire share: messages, the tensor container, checks, identities, errors.

Invariant: gRPC is imported after this package, as it reads its environment then, and only then.
"""

import os

# Names as the machine itself resolves them: gRPC's own resolver asks DNS even for what is in the
# hosts file (15 s a connection where no DNS server answers), and knows no mDNS (`hub.local`).
os.environ.setdefault("GRPC_DNS_RESOLVER", "native")
# Training code may fork workers. They never use gRPC, whose own handlers abort some of them.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
