"""
Raises the limit of open files to the hard limit.

A container starts with 1024 (containerd 2), the limit of programs that use select(2); this one does not. Each container
with a time quota costs an agent some descriptors, and an agent without free ones can read no process, journal or
ticket.
"""

import resource

from sluice.runtime import logs

FILES_MAX = 1_048_576
"""
A kernel's default maximum (fs.nr_open). MPS daemons inherit the limit, and a program that closes all possible files
would take minutes with the thousand million that some hosts allow.
"""


def raise_file_limit() -> None:
    """Raise the soft limit of open files to the hard one. A failure is logged, and the limit stays."""
    log = logs.get("app")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        log.info("open files", limit=soft)
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        log.warning("the limit of open files cannot be raised", limit=soft, wanted=wanted, why=str(error))
        return
    log.info("open files", limit=wanted, before=soft)
