"""
Text of others, before it reaches a terminal.

Names, annotations and sentences come from manifests and from agents that somebody may have taken over. A terminal obeys
what is written to it: it would wipe the screen, fill the clipboard, or show lines that nobody has said.
"""

import re

_OBEYED = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""C0, DEL and C1 (ECMA-48); line and paragraph separators; what turns the direction of reading (Unicode UAX #9)."""


def sanitize(text: str) -> str:
    r"""One line in which what a terminal would obey is readable: `\x1b` for an escape, `\n` for the end of a line."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
