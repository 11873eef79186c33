"""What an answer of the Kubernetes API server means: why a call failed, and whether it may pass.

`refused` answers stay the same until a person changes something; others pass with time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from fedpilot.common.strict_yaml.errors import printable

from ...errors import ProviderFailed

LONGEST = 500
"""In characters, of what the server says."""
LONGEST_WAIT_S = 600.0
"""The longest pause that a server may ask for."""
GONE = 410


class ApiCallFailed(ProviderFailed):
    """A call of the Kubernetes API server failed."""

    def __init__(
        self,
        reason: str,
        status: int = 0,
        refused: bool = False,
        wait_s: float = 0.0,
        conflicts: tuple[str, ...] = (),
        missing_type: bool = False,
    ) -> None:
        super().__init__(reason, status, refused, wait_s, conflicts, missing_type)
        self.reason = reason
        self.status = status
        """Of HTTP; 0 without an answer."""
        self.refused = refused
        """Whether the answer stays the same until a person changes something."""
        self.wait_s = wait_s
        """How long the server asks to wait."""
        self.conflicts = conflicts
        """The keys that other field managers own."""
        self.missing_type = missing_type
        """Whether the server does not know the kind of resource."""

    def __str__(self) -> str:
        return self.reason


def failure_of(status: int, body: bytes, headers: Mapping[str, str], *, what: str) -> ApiCallFailed:
    """The failure that an answer of HTTP is; `what` is the call, such as `apply demo`."""
    answer = _document(body)
    said = printable(str(answer.get("message") or _plain(body) or f"HTTP {status}"), LONGEST)
    lead = f"the API server refuses to {what}"
    if status == 401:
        reason = f"{lead}: it does not accept these credentials; see the kubeconfig ({said})"
        return ApiCallFailed(reason, status, refused=True)
    if status == 403:
        return ApiCallFailed(f"{lead}: {said}", status, refused=True)
    if status == 404:
        missing = answer.get("reason") != "NotFound" or not _names_an_object(answer)
        reason = f"KubeRay is not installed there: the API server knows no RayCluster ({said})"
        return ApiCallFailed(
            reason if missing else f"{lead}: {said}", status, refused=True, missing_type=missing
        )
    if status == 409:
        return _conflict(answer, said, what)
    if status in (400, 413, 415, 422):
        return ApiCallFailed(f"{lead}, which is not valid: {said}", status, refused=True)
    if status == GONE:
        return ApiCallFailed("the API server has forgotten that version", status)
    if status == 429:
        return ApiCallFailed(
            f"the API server has too much to do to {what}", status, wait_s=_wait_s(headers)
        )
    return ApiCallFailed(
        f"the API server failed to {what}: {said}", status, wait_s=_wait_s(headers)
    )


def _conflict(answer: Mapping[str, Any], said: str, what: str) -> ApiCallFailed:
    """Other field managers own keys; or the resource has changed meanwhile, which passes."""
    causes = [each for each in _causes(answer) if each.get("reason") == "FieldManagerConflict"]
    if not causes:
        return ApiCallFailed(f"the resource has changed meanwhile: {said}", 409)
    told = "; ".join(
        f"{_manager(str(each.get('message')))} owns {printable(str(each.get('field')), 200)}"
        for each in causes
    )
    fields = tuple(str(each.get("field")) for each in causes)
    reason = f"cannot {what}: in Kubernetes, {told}; declare it so, or make that manager let go"
    return ApiCallFailed(printable(reason, LONGEST), 409, refused=True, conflicts=fields)


def _manager(message: str) -> str:
    """The other field manager, which the message quotes."""
    found = re.search(r'"([^"]+)"', message)
    return printable(found[1] if found else message, 100)


def _causes(answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    details = answer.get("details")
    causes = details.get("causes") if isinstance(details, Mapping) else None
    return [each for each in causes or () if isinstance(each, Mapping)]


def _names_an_object(answer: Mapping[str, Any]) -> bool:
    """Whether an object is missing, rather than the kind of objects."""
    details = answer.get("details")
    return isinstance(details, Mapping) and bool(details.get("name"))


def _wait_s(headers: Mapping[str, str]) -> float:
    text = headers.get("Retry-After", "")
    return min(float(text), LONGEST_WAIT_S) if re.fullmatch(r"[0-9]{1,9}", text) else 0.0


def _document(body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, Mapping) else {}


def _plain(body: bytes) -> str:
    return "" if _document(body) else body[:LONGEST].decode(errors="replace").strip()
