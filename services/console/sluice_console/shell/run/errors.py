"""How `sluice run` ends when it is not its command that fails. It imports nothing that takes time."""

from sluice_console.shell.errors import CommandError

EXIT_OURS = 125
"""Of `sluice run` itself, as `docker run` and `timeout` have it: its command was not run, or nobody knows."""
EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND = 126, 127
"""Of the command, as every shell has it (POSIX, Shell Command Language, 2.8.2)."""
EXIT_SIGNAL = 128


class RunError(CommandError):
    """The command was not run. One sentence, with what helps."""

    exit_code = EXIT_OURS
