"""Errors that a person must fix. Their text is one sentence for that person; they end a service without traceback."""


class ServiceError(Exception):
    """A service cannot work as it was started: a wrong setting, a taken port, a lock that another process holds."""


class NewContainerError(ServiceError):
    """What the process needs comes only with a new container, such as a mount whose folder was removed on the node."""
