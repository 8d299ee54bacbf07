"""What can be typed: `sluice completion bash|zsh|fish`. The shell asks nothing of us when a key is pressed."""

import sys
from typing import Annotated, Literal

from cyclopts import App, Parameter

Shell = Literal["bash", "zsh", "fish"]


def add_to(app: App) -> None:
    """Give the command its verb; what is completed is what `app` has by then and later."""

    def completion_command(
        shell: Annotated[Shell, Parameter(help="Which shell: bash, zsh or fish.")],
    ) -> int:
        """
        A script that completes commands and options; docs/cli.md says where each shell looks for it.

        For now: source <(sluice completion bash)
        """
        sys.stdout.write(app.generate_completion(shell=shell))
        return 0

    app.command(completion_command, name="completion")
