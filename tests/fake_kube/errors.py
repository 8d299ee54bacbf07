"""The only place for an API server's error answers, each text copied from a real one."""

from typing import Any

Json = dict[str, Any]

REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
"""What a real server calls each code (metav1.StatusReason)."""


class ApiError(Exception):
    """A request that is answered with a Status of failure."""

    def __init__(
        self, code: int, message: str, *, reason: str | None = None, details: Json | None = None, retry_after_s: int = 0
    ) -> None:
        """`reason` if not the usual one; `details` as in metav1.StatusDetails; `retry_after_s`: 0 for none."""
        super().__init__(message)
        self.code = code
        self.reason = REASONS.get(code, "") if reason is None else reason
        self.message = message
        self.details = details
        self.retry_after_s = retry_after_s

    def status(self) -> Json:
        body: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            body["reason"] = self.reason
        if self.details is not None:
            body["details"] = self.details
        return {**body, "code": self.code}


def success(details: Json | None = None, *, code: int | None = None) -> Json:
    """The Status of a success without an object."""
    body: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details is not None:
        body["details"] = details
    if code is not None:
        body["code"] = code
    return body


def _details(resource: str, name: str) -> Json:
    plural, _, group = resource.partition(".")
    return {key: value for key, value in (("name", name), ("group", group), ("kind", plural)) if value}


def not_found(resource: str, name: str) -> ApiError:
    """Not found; `resource` with its group: `gpus.sluice.dev`."""
    return ApiError(404, f'{resource} "{name}" not found', details=_details(resource, name))


def no_such_page() -> ApiError:
    """A path or resource that the server does not serve."""
    return ApiError(404, "the server could not find the requested resource", details={})


def already_exists(resource: str, name: str) -> ApiError:
    message = f'{resource} "{name}" already exists'
    return ApiError(409, message, reason="AlreadyExists", details=_details(resource, name))


def conflict(resource: str, name: str, why: str) -> ApiError:
    """A precondition, or an object in another state than the request supposed."""
    message = f'Operation cannot be fulfilled on {resource} "{name}": {why}'
    return ApiError(409, message, details=_details(resource, name))


def modified(resource: str, name: str) -> ApiError:
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(resource, name, why)


def forbidden(resource: str, name: str, why: str) -> ApiError:
    """Refused by authorisation, quota or limits; no `details.causes`, unlike a policy's refusal."""
    what = f'{resource} "{name}"' if name else resource
    return ApiError(403, f"{what} is forbidden: {why}", details=_details(resource, name))


_KINDS = {
    "Invalid value": "FieldValueInvalid",
    "Forbidden": "FieldValueForbidden",
    "Required value": "FieldValueRequired",
    "Too long": "FieldValueTooLong",
    "Unsupported value": "FieldValueNotSupported",
    "Duplicate value": "FieldValueDuplicate",
    "Not found": "FieldValueNotFound",
}


class Fault:
    """One field of an object that is wrong."""

    def __init__(self, field: str, kind: str, text: str, *, value: object = None) -> None:
        """`kind` as field.ErrorType prints it, one of `_KINDS`; `value` is shown with `Invalid value` and the like."""
        shown = "" if value is None else f' "{value}":' if isinstance(value, str) else f" {value}:"
        self.field = field
        self.reason = _KINDS[kind]
        self.text = f"{kind}:{shown} {text}" if text else f"{kind}"


def invalid(kind: str, name: str, faults: list[Fault]) -> ApiError:
    """An object that fails validation; `kind` with its group: `Event.events.k8s.io`."""
    texts = [f"{fault.field}: {fault.text}" for fault in faults]
    told = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    bare, _, group = kind.partition(".")
    causes = [{"reason": fault.reason, "message": fault.text, "field": fault.field} for fault in faults]
    details = {"name": name, **({"group": group} if group else {}), "kind": bare, "causes": causes}
    return ApiError(422, f'{kind} "{name}" is invalid: {told}', details=details)


def rejected_patch() -> ApiError:
    """A JSON patch that does not fit the object: a failed test, an absent path. Always this one text, and no causes."""
    return ApiError(422, "the server rejected our request due to an error in our request", details={})


def too_old(version: int, oldest: int) -> ApiError:
    """A resourceVersion whose changes are no longer known."""
    return ApiError(410, f"too old resource version: {version} ({oldest})")
