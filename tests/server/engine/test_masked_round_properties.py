"""A masked round keeps its promises for any order, loss, repeat, deadline and kill of the server.

The devices of the stage check the protocol's rules; the stage checks the barrier, and that states
never go back; both know nothing of the engine.
"""

from itertools import combinations, product
from random import Random

import pytest

from fedloom.server.engine import (
    Abort,
    Attended,
    ClientFailed,
    CloseNow,
    Left,
    OperatorRefused,
    Pause,
    Ready,
    RoundState,
    Wake,
)
from support.masked_sessions import AGREE, BODY, REVEAL, SHARE, Device, Stage, config, needed

NAMES = tuple("abcdefgh")
PHASES = (SHARE, BODY, AGREE, REVEAL)


def staged(stops=(), names=NAMES, kill_at=None, **more):
    devices = {name: Device(name, dict(stops).get(name, "")) for name in names}
    return Stage(devices, config(len(names), **more), kill_at=kill_at)


def played(stops=(), **more):
    stage = staged(stops, **more)
    stage.ready()
    stage.run_out()
    return stage


def survivors(members, stops):
    """Who is in the sum of a session, by counting alone; nobody if it is abandoned."""
    need, left = needed(len(members)), set(members)
    for phase in PHASES:
        left -= {name for name, stop in stops if stop == phase}
        if len(left) < need:
            return ()
        if phase == BODY:
            masked = tuple(sorted(left))
    return masked


@pytest.mark.parametrize("size", [3, 4, 5, 6])
def test_every_pattern_of_drop_outs_gives_the_survivors_or_nothing(size):
    """Each member of one session stops at each message or at none: all patterns of up to three."""
    names = NAMES[:size]
    for count in range(min(size, 3) + 1):
        for who in combinations(names, count):
            for when in product(PHASES, repeat=count):
                stops = tuple(zip(who, when, strict=True))
                stage = played(stops, names=names, group=6)
                expected = survivors(names, stops)
                ended = RoundState.COMMITTED if expected else RoundState.ABANDONED
                assert stage.result() == (ended, [expected]), stops


SCRIPTS = [
    (),
    (("a", SHARE),),
    (("a", BODY), ("e", BODY)),
    (("b", AGREE),),
    (("c", REVEAL), ("h", SHARE)),
    (("a", SHARE), ("b", SHARE), ("h", BODY)),
    tuple((name, AGREE) for name in NAMES),
    tuple((name, BODY) for name in NAMES),
]


@pytest.mark.parametrize("stops", SCRIPTS)
@pytest.mark.parametrize("quorum", [3, 7])
def test_a_kill_at_any_crossing_gives_the_same_result(stops, quorum):
    """Before and after each durable step, one after the other."""
    whole = played(stops, quorum=quorum)
    assert whole.crossings > 20
    for kill_at in range(1, whole.crossings + 1):
        killed = played(stops, quorum=quorum, kill_at=kill_at)
        assert killed.kill_at is None, "the server was not killed"
        assert killed.result() == whole.result(), kill_at


class Chaos:
    """Plays a round with everything at random."""

    def __init__(self, seed):
        self.draw = Random(seed)
        count = self.draw.randint(3, 16)
        names = [f"c{n:02}" for n in range(count)]
        group = self.draw.choice([4, 5, 8])
        least = self.draw.randint(2, min(group, count))
        stops = {name: self.draw.choice(PHASES) for name in names if self.draw.random() < 0.15}
        kinds = self.draw.choice([1, 1, 2])
        self.stage = Stage(
            {name: Device(name, stops.get(name, "")) for name in names},
            config(
                count, group=group, min_group=least, quorum=self.draw.randint(least, count),
                session_s=self.draw.choice([25.0, 100.0, 1000.0]),
                patience_s=self.draw.choice([0.0, 1.0, 8.0]),
            ),
            width=lambda name: str(int(name[1:]) % kinds),
        )  # fmt: skip

    def step(self):
        stage, draw = self.stage, self.draw
        name, dice = draw.choice(stage.names), draw.random()
        if stage.wire and dice < 0.55:
            stage.deliver(draw.randrange(len(stage.wire)), again=draw.random() < 0.1)
        elif stage.wire and dice < 0.58:
            del stage.wire[draw.randrange(len(stage.wire))]  # lost
        elif dice < 0.75:
            stage.feed(Ready(name, stage.width(name)))
        elif dice < 0.82:
            stage.feed(Left(name))
        elif dice < 0.90:
            stage.feed(Attended(name))
        elif dice < 0.91:
            stage.book.failed.add(name)
            stage.feed(ClientFailed(name, "no disk"))
        elif dice < 0.96:
            stage.now += draw.expovariate(0.3)
            stage.feed(Wake())
        elif dice < 0.975:
            stage.restart()
        elif dice < 0.98:
            self.command()

    def command(self):
        event = self.draw.choice([Pause(), CloseNow(), Abort("enough")])
        if isinstance(event, Pause) and self.stage.engine.state is not RoundState.MASKING:
            return  # a paused round that is reporting never ends
        try:
            self.stage.feed(event)
        except OperatorRefused:
            assert isinstance(event, CloseNow)


@pytest.mark.parametrize("seed", range(200))
def test_a_round_in_chaos_keeps_its_promises(seed):
    """Four hundred steps; the devices, the stage and the end check everything."""
    chaos = Chaos(seed)
    for _ in range(400):
        chaos.step()
        if chaos.stage.engine.state.is_over:
            break
    chaos.stage.run_out()


@pytest.mark.long
@pytest.mark.parametrize("block", range(20))
def test_many_rounds_in_chaos_keep_their_promises(block):
    """Two hundred rounds a block."""
    for seed in range(1000 + 200 * block, 1200 + 200 * block):
        test_a_round_in_chaos_keeps_its_promises(seed)


def test_chaos_reaches_every_end():
    """The witnesses of the tests above would see something: rounds commit, and are abandoned."""
    ends = set()
    reasons = set()
    for seed in range(60):
        chaos = Chaos(seed)
        for _ in range(400):
            chaos.step()
            if chaos.stage.engine.state.is_over:
                break
        chaos.stage.run_out()
        ends.add(chaos.stage.ended)
        reasons |= {row["reason"].split(":")[0] for row in chaos.stage.book.sessions}
    assert ends == {RoundState.COMMITTED, RoundState.ABANDONED}
    assert {"", "threshold not reached"} <= reasons
    assert any(reason.startswith("not complete after") for reason in reasons)
