"""How `sluice run` ends when it fails itself. Imports nothing slow."""

from sluice_console.shell.errors import CommandError

EXIT_OURS = 125
"""`sluice run` failed, as in `docker run` and `timeout`: the command did not run, or its result is unknown."""
EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND = 126, 127
"""Exit codes of the command, as in every shell (POSIX, Shell Command Language, 2.8.2)."""
EXIT_SIGNAL = 128


class RunError(CommandError):
    """The command did not run. One sentence, with what helps."""

    exit_code = EXIT_OURS
