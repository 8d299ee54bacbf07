"""Base of the errors of commands. Imports nothing, because every command loads it."""


class CommandError(Exception):
    """The command failed: one sentence for the user. It ends with `exit_code`."""

    exit_code = 1


class NotFoundError(CommandError):
    """No such request, node or slice."""

    exit_code = 4
