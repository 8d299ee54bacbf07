"""The command line of `sluice completion bash|zsh|fish`. Only for names its script starts `sluice` at a key press."""

import sys
from typing import Annotated, Literal

from cyclopts import App, Parameter

Shell = Literal["bash", "zsh", "fish"]
_ZSH_START = """
case $funcstack[1] in
  _sluice|_cyclopts_sluice) _cyclopts_sluice "$@" ;;
  *) (( $+functions[compdef] )) && compdef _cyclopts_sluice sluice ;;
esac
"""
"""As a file of `fpath`, named `_sluice` too, the script completes at its first call; sourced, it registers itself."""


def completion_script(app: App, shell: Shell) -> str:
    """The script, which completes every verb of `app`."""
    return app.generate_completion(shell=shell) + (_ZSH_START if shell == "zsh" else "")


def add_to(app: App) -> None:
    """Register the verb."""

    def completion_command(
        shell: Annotated[Shell, Parameter(help="Which shell: bash, zsh or fish.")],
    ) -> int:
        """Print a script that completes commands, options and names; docs/cli.md says where each shell looks for it.

        For this shell only: source <(sluice completion bash)"""
        sys.stdout.write(completion_script(app, shell))
        return 0

    app.command(completion_command, name="completion")
