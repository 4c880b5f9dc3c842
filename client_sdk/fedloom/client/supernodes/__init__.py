"""The bridge: Flower's SuperNodes take part in runs as clients of the server (docs/adr/0025).

A bridge speaks the HTTP of flwr's Fleet API to `flower-supernode` processes, and is an agent of the
server for each of them. The server sees ordinary clients with the label `kind=supernode`.

Invariants: a call of a SuperNode is served only if it is signed by an enrolled key; of a SuperNode,
at most one message and one reply are on disk.
"""
