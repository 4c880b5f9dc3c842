"""Clients of the crash test that tell it, outside of their states, what they do in masked sessions.

Usage: masked_crash_client.py TOLD [--forgets] CONFIG [CONFIG ...]

TOLD is a folder of files of JSON lines. Told are secrets, before they are used; what is masked;
every message, before it is sent; and what lies on the disk when a masked body is sent.
`--forgets` breaks a rule on purpose: no record is kept of what was masked.
"""

import asyncio
import hashlib
import itertools
import json
import logging
import os
import sys
from pathlib import Path

from crash_client import main

from fedloom.client.masking import record, tasks
from fedloom.client.masking import session as sessions
from fedloom.client.masking.outbox import MaskedOutbox
from fedloom.client.masking.record import MaskedRecord
from fedloom.protocol.masking import member

SAMPLE = slice(1000, 1032)
"""Bytes of a body that are searched for."""


class Told:
    """Writes lines; a killed process has written all that it told."""

    def __init__(self, folder):
        folder.mkdir(exist_ok=True)
        numbers = itertools.count()
        self._file = (folder / f"{os.getpid()}.{next(numbers)}.jsonl").open("a")

    def __call__(self, event, **facts):
        self._file.write(json.dumps({"event": event, **facts}) + "\n")
        self._file.flush()


def tell_secrets(told):
    """Seeds, private keys, and shares of others' seeds."""
    own, opened, masked = member.MemberSecrets, member.open_shares, member.Member.mask

    def make(random):
        made = own(random)
        for secret in (made.pair_seed, made.self_seed, made.channel.private_bytes_raw()):
            told("secret", hex=bytes(secret).hex())
        return made

    def open_shares(*args):
        found = opened(*args)
        for share in itertools.chain.from_iterable(found.values()):
            told("share", hex=bytes(share).hex())
        return found

    def mask(self, body, layout, **settings):
        told("plain", hex=bytes(body.data[SAMPLE]).hex())
        masked(self, body, layout, **settings)

    member.MemberSecrets, member.open_shares, member.Member.mask = make, open_shares, mask


def tell_messages(told):
    """What leaves the device: masked bodies, and messages of sessions."""
    store, say = MaskedOutbox.store, sessions.MaskedSession._say
    left, upload = MaskedRecord.leaves, tasks.MaskedTasks.__init__

    def stored(self, *args):
        told("plain", hex=self.plain.read_bytes()[SAMPLE].hex())
        return store(self, *args)

    def leaves(self, update, session, repeats):
        left(self, update, session, repeats)
        client = self._folder.parent.parent.name
        told("body", client=client, round=update.round, model=update.model)

    async def said(self, **kind):
        [(phase, content)] = kind.items()
        roster = self._member.roster
        told(
            phase, client=self._member.advert.name, round=self._offer.key.round,
            session=roster.sid.hex() if roster else "", digest=hashlib.sha256(content).hexdigest(),
            kinds=content[::33].decode("latin1") if phase == "reveal" else "",
        )  # fmt: skip
        await say(self, **kind)

    def made(self, connection, state, send):
        async def sends(header, outbox):
            told("upload", client=connection.name, clear=outbox.plain.exists())
            await send(header, outbox)

        upload(self, connection, state, sends)

    MaskedOutbox.store, sessions.MaskedSession._say = stored, said
    MaskedRecord.leaves = leaves
    tasks.MaskedTasks.__init__ = made


def forget():
    """Heed no record: an update can be masked a second time."""
    record._objection = lambda known, update, repeats: None
    MaskedRecord.begin = lambda self, update: 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    folder, *configs = sys.argv[1:]
    told = Told(Path(folder))
    tell_secrets(told)
    tell_messages(told)
    if configs[0] == "--forgets":
        forget()
        del configs[0]
    asyncio.run(main(configs))
