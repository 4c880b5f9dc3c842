"""Random readable names for clients, such as `calm-heron-27`.

There are about 200,000; the caller checks that a name is free.
"""

import secrets

_QUALITIES = (
    "amber", "bold", "brave", "brisk", "bright", "calm", "clear", "clever", "cool", "coral",
    "crisp", "deft", "eager", "early", "fair", "fleet", "fond", "gentle", "glad", "golden",
    "grand", "happy", "hardy", "keen", "kind", "light", "lively", "lucky", "mellow", "merry",
    "mild", "neat", "noble", "plain", "proud", "quick", "quiet", "rapid", "ready", "silver",
    "sleek", "smart", "solid", "steady", "still", "sunny", "swift", "tidy", "warm", "wise",
)  # fmt: skip
_ANIMALS = (
    "badger", "beaver", "bison", "crane", "deer", "dolphin", "eagle", "egret", "falcon", "finch",
    "fox", "gecko", "goose", "hare", "hawk", "heron", "ibex", "jay", "kestrel", "lark",
    "lynx", "magpie", "marten", "mole", "moose", "newt", "osprey", "otter", "owl", "panda",
    "petrel", "plover", "puffin", "quail", "raven", "robin", "salmon", "seal", "shrew", "stork",
)  # fmt: skip


def draw_name() -> str:
    """Draw a name that is easy to say and to type."""
    number = 1 + secrets.randbelow(99)
    return f"{secrets.choice(_QUALITIES)}-{secrets.choice(_ANIMALS)}-{number}"
