"""The answer to one AdmissionReview, in the API server's format."""

import base64
from dataclasses import dataclass
from typing import Any

import msgspec

Operation = dict[str, Any]  # one operation of a JSON patch (RFC 6902)
WARNINGS_MAX = 10
WARNING_CHARACTERS_MAX = 250  # clients cut warnings above 256 characters


@dataclass(frozen=True, slots=True)
class AdmissionResponse:
    """A pod that is allowed, with its patch; or denied, with `code` and `message` for its owner."""

    uid: str
    allowed: bool = True
    patch: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()
    code: int = 200
    message: str = ""

    def as_review(self) -> dict[str, Any]:
        """The AdmissionReview to send back."""
        response: dict[str, Any] = {"uid": self.uid, "allowed": self.allowed}
        if not self.allowed:
            reason = "Forbidden" if self.code == 403 else "Invalid"
            response["status"] = {"code": self.code, "reason": reason, "message": self.message}
        if self.patch:
            response["patchType"] = "JSONPatch"
            response["patch"] = base64.b64encode(msgspec.json.encode(self.patch)).decode()
        if self.warnings:
            response["warnings"] = [text[:WARNING_CHARACTERS_MAX] for text in self.warnings[:WARNINGS_MAX]]
        return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
