"""An agent in a process of its own, which a test kills; it tells the test its session's secrets.

    python masking_agent.py SERVER STATE POLICY STEP EXAMPLES SECRETS

It writes every seed and share, in hex, to the file SECRETS outside of its state.
"""

import os
import sys
from pathlib import Path

from fedloom.client.agent.agent import attend
from fedloom.client.config import ClientConfig
from fedloom.protocol.masking import member
from support.agents import Adder


def main(*args):
    server, state, policy, step, examples, secrets = args
    own, opened = member.MemberSecrets, member.open_shares

    def tell(*values):
        with Path(secrets).open("a") as file:
            file.writelines(f"{bytes(value).hex()}\n" for value in values)
            file.flush()
            os.fsync(file.fileno())

    def make(random):
        made = own(random)
        tell(made.pair_seed, made.self_seed, made.channel.private_bytes_raw())
        return made

    def open_shares(*args):
        found = opened(*args)
        tell(*(share for both in found.values() for share in both))
        return found

    member.MemberSecrets, member.open_shares = make, open_shares
    config = ClientConfig(
        server=server, state_dir=Path(state), policy=Path(policy), reconnect_s=0.1
    )
    attend(Adder(float(step), int(examples)), config)


if __name__ == "__main__":
    main(*sys.argv[1:])
