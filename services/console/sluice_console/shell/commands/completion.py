"""The command line of `sluice completion bash|zsh|fish`. The script is static: no key press starts `sluice`."""

import sys
from typing import Annotated, Literal

from cyclopts import App, Parameter

Shell = Literal["bash", "zsh", "fish"]


def add_to(app: App) -> None:
    """Register the verb. The script completes every verb of `app`, those added later included."""

    def completion_command(
        shell: Annotated[Shell, Parameter(help="Which shell: bash, zsh or fish.")],
    ) -> int:
        """
        Print a script that completes commands and options; docs/cli.md says where each shell looks for it.

        For this shell only: source <(sluice completion bash)
        """
        sys.stdout.write(app.generate_completion(shell=shell))
        return 0

    app.command(completion_command, name="completion")
