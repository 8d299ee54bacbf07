"""
Decode values of a manifest as the API server does: null leaves a field out; numbers and booleans are typed.

Other values stay as written (`Unquoted`), so that a refusal can quote them.
"""

import re
from typing import Any

from sluice.contracts.request_syntax.source_text import Unquoted, is_null

_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")
_TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
"""YAML 1.1, as kubectl reads it (https://yaml.org/type/bool.html)."""


def as_api_value(value: Any) -> Any:
    """A copy without nulls in its mappings. Its depth is that of the text, which is bounded."""
    match value:
        case dict():
            return {key: as_api_value(each) for key, each in value.items() if not is_null(each)}
        case list():
            return [as_api_value(each) for each in value]
        case Unquoted() if is_null(value):
            return None
        case Unquoted() if _WHOLE.fullmatch(value.text):
            return int(value.text)
        case Unquoted():
            return _TRUTH.get(value.text.lower(), value)
        case _:
            return value
