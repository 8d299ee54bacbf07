"""Read the limits file whenever its text has changed and stayed unchanged for a moment. It polls: a ConfigMap changes
by a swapped symbolic link two folders up, and an editor may write in place. A single read may find a half-written or
empty file, which would lift every limit: so a text counts once two reads in a row agree.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from sluice.contracts.quotas.limits_file import BYTES_MAX
from sluice.runtime.clock import Clock
from sluice.runtime.text_files import NotTextError, open_to_read, read_text
from sluice_pod_watcher.core.limits_source import LimitsRead, LimitsUnreadable

LOOK_S = 1.0  # Between two reads of a file of at most 64 KiB. An edit counts after the second read that shows it.
SETTLED_S = 2.0  # at the start, a file that was written longer ago than this counts at once: pods wait for it


@dataclass(frozen=True, slots=True)
class LimitsFile:
    """One file, which may be missing."""

    path: Path
    clock: Clock

    async def changes(self) -> AsyncIterator[LimitsRead | LimitsUnreadable]:
        """The content of the file, and each change; or why it cannot be read. Never ends."""
        before: LimitsRead | LimitsUnreadable | None = None
        told = before
        while True:
            seen = await asyncio.to_thread(self.look)
            counts = seen == before or (before is None and await asyncio.to_thread(self._is_settled))
            if counts and seen != told:
                yield seen
                told = seen
            before = seen
            await self.clock.sleep(LOOK_S)

    def _is_settled(self) -> bool:
        try:
            found = self.path.stat()
        except OSError:
            return True
        return self.clock.utc().timestamp() - max(found.st_mtime, found.st_ctime) > SETTLED_S

    def look(self) -> LimitsRead | LimitsUnreadable:
        """The content of the file now."""
        try:
            descriptor = open_to_read(self.path)
            try:
                return LimitsRead(read_text(descriptor, os.fstat(descriptor).st_mode, BYTES_MAX))
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return LimitsUnreadable(f"there is no limits file {self.path}", missing=True)
        except OSError as error:
            return LimitsUnreadable(f"the limits file {self.path} cannot be read: {error.strerror or error}")
        except NotTextError as error:
            return LimitsUnreadable(f"the limits file {self.path} cannot be read: {error}")
