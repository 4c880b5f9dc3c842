"""The command line with other constants, for what would take a test long or need a large fleet.

python tests/support/other_constants.py '{"fedloom.module.NAME": 1}' server run ...
"""

import json
import sys
from importlib import import_module

import fedloom.server.app  # noqa: F401 - first: it tunes the allocator before grpc is loaded
from fedloom.cli.main import main

if __name__ == "__main__":
    for name, value in json.loads(sys.argv.pop(1)).items():
        module, _, constant = name.rpartition(".")
        found = import_module(module)
        assert hasattr(found, constant), name
        setattr(found, constant, value)
    main()
