"""
Sanitize untrusted text before it reaches a terminal.

Names, annotations and messages come from manifests and from agents that may be compromised. Control sequences in them
could wipe the screen, fill the clipboard, or fake lines.
"""

import re

_OBEYED = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""C0, DEL and C1 (ECMA-48); line and paragraph separators; bidirectional controls (Unicode UAX #9)."""


def sanitize(text: str) -> str:
    r"""One line in which control characters are readable: `\x1b` for an escape, `\n` for the end of a line."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
