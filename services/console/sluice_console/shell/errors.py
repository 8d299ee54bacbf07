"""How a command says that it cannot do what it was asked for. It imports nothing, for every command starts with it."""


class CommandError(Exception):
    """What could not be done: one sentence for the person who asked. The command ends with `exit_code`."""

    exit_code = 1
