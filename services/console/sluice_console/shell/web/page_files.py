"""
The page's own files, read once and served from memory: some dozens of KiB.

Starlette's static files stat the disk in threads for each answer: ten times the work, noticeable when the page opens.
"""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

KINDS: Mapping[str, str] = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""By suffix. Other files are not served."""


class PageFiles:
    """The files of one folder by name."""

    def __init__(self, folder: Path) -> None:
        """Read them all. Raises OSError."""
        self._files = dict(_read(folder))

    def answer(self, request: Request, name: str) -> Response | None:
        """The file, or 304 if the browser has it; None if there is none of that name."""
        found = self._files.get(name)
        if found is None:
            return None
        content, kind, tag = found
        headers = {"cache-control": "no-cache", "etag": tag}  # revalidated each time, sent when changed
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=kind, headers=headers)


def _read(folder: Path) -> Iterator[tuple[str, tuple[bytes, str, str]]]:
    for file in folder.iterdir():
        if file.suffix in KINDS:
            content = file.read_bytes()
            yield file.name, (content, KINDS[file.suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')
