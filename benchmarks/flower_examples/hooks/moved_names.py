"""Names that examples of March 2026 import and that flwr 1.41 has elsewhere."""

import sys


def common_typing(module):
    from flwr.app.user_config import UserConfig

    module.UserConfig = UserConfig


def client(module):
    from flwr.clientapp import typing

    module.typing = sys.modules["flwr.client.typing"] = typing
