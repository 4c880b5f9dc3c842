"""`make cluster`, `make cluster-status`, `make cluster-restart`, `make cluster-stop`.

PYTHONPATH=scripts python -m cluster start --folder out/cluster --devices 6 --port 8443
"""

import argparse
import signal
import sys
from pathlib import Path

from fedloom.protocol import transport  # noqa: F401 - before gRPC is imported
from fedloom.protocol.errors import FedloomError

from cluster import starting, stopping, view  # isort: skip - they import gRPC
from cluster.settings import DEFAULT, Settings  # isort: skip


def main() -> int:
    """Do one of them; the exit status."""
    given = _arguments()
    folder = given.folder.resolve()
    # As Ctrl-C: it ends what was started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        match given.action:
            case "start":
                settings = Settings(port=given.port, num_devices=given.devices)
                starting.start(folder, settings)
            case "restart":
                starting.restart(folder)
            case "status":
                view.show(folder)
            case "stop":
                stopping.stop(folder, keep=given.keep)
    except FedloomError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="cluster", description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=["start", "status", "restart", "stop"])
    parser.add_argument("--folder", type=Path, default=DEFAULT)
    parser.add_argument("--port", type=int, default=8443)
    parser.add_argument("--devices", type=int, default=6)
    parser.add_argument("--keep", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
