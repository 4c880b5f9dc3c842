"""The aggregation server: a pure core that decides, and drivers with sockets, files and clocks.

    >>> from fedloom.server.planning.spec import parse
    >>> settings = {"epochs": 1, "learning_rate": 0.1}
    >>> spec = parse({"rounds": 20, "cohort": {"goal": 5}, "train": settings})
    >>> spec.rounds, spec.round_config().goal, spec.build_strategy().server_learning_rate
    (20, 5, 1.0)

`fedloom server init` makes a state directory and `fedloom server run` serves it; a program calls
`fedloom.server.app.run(state_dir)`.

planning  the specification of a run, what a round asks, what it admits (pure)
engine    the state machines of a round and a run (pure)
rounds    the asyncio drivers of runs and rounds
fleet     the gRPC services; http, routes, web: the API and the console
ledger    the database; storage, pki: files and keys
app       puts the parts together, starts and stops them
"""
