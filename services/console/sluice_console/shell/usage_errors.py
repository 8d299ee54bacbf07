"""What is wrong with a command line, in a sentence. The parser's own words name Python types and internal tokens."""

from cyclopts import CoercionError, CycloptsError, MissingArgumentError, UnknownOptionError, UnusedCliTokensError
from cyclopts.exceptions import ConsumeMultipleError

_KINDS: dict[type, str] = {int: "a whole number", float: "a number", bool: "true or false"}


def usage_text(error: CycloptsError) -> str:
    """The word that is wrong, what is allowed, and the help to read."""
    command = " ".join(("sluice", *(error.command_chain or ())))
    return f"{_wrong(error)} (`{command} --help`)"


def _wrong(error: CycloptsError) -> str:
    if isinstance(error, UnknownOptionError) and ":" in error.token.value:
        return f"{error.token.value}: words that exclude come after `--`"
    if isinstance(error, UnusedCliTokensError):
        return f"{' '.join(error.unused_tokens or ())}: not expected here"
    if isinstance(error, MissingArgumentError) and not isinstance(error, ConsumeMultipleError) and error.argument:
        if error.keyword is not None:
            return f"{error.keyword}: needs a value"
        name = error.argument.name
        return f"{name.lstrip('-').upper() if error.argument.field_info.is_positional else name} is missing"
    if isinstance(error, CoercionError) and error.token is not None and error.target_type in _KINDS:
        option = error.token.keyword or ""
        unit = " of seconds" if option.endswith("-s") else ""
        return f"{option} {error.token.value}: must be {_KINDS[error.target_type]}{unit}".lstrip()
    return str(error)
