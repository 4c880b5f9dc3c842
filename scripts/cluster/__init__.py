"""A replicated deployment on this machine, to try it out: `make cluster`, `make cluster-stop`.

`postgresql`, `object_store` and `haproxy` are the tests' as well.
"""
