"""The program of a training process, which `fedloom client run` starts; not for use by hand."""

import argparse
from pathlib import Path

from fedloom.cli.common.load_code import load_client, load_flower
from fedloom.cli.common.logging import set_up
from fedloom.client.agent.training_child import serve


def main() -> None:
    """Load the code of a client and run the agent's tasks."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("code", nargs="?", default="")
    parser.add_argument("--flower", default="")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--log-format", default="text")
    parser.add_argument("--log-level", default="info")
    given = parser.parse_args()
    set_up(given.log_format, given.log_level)
    serve(
        lambda: load_flower(given.flower, given.config) if given.flower else load_client(given.code)
    )


if __name__ == "__main__":
    main()
