"""What a call to the API server can end in, one type per way of going on.

`from_status` turns an answer into an error by its code and reason, never by its text. `ConfigError` is a
mistake of whoever starts the operator; all others are met while it runs, and are retried by the queue.
"""

from typing import Any

from trimtab.errors import TrimtabError, UserError

JsonObject = dict[str, Any]


class ConfigError(UserError):
    """The operator is given no usable way to the API server."""


class KubeError(TrimtabError):
    """Base: a call that did not succeed."""


class TransportError(KubeError):
    """No answer: connection refused or broken, or the deadline passed. The call may have had its effect."""


class NotLeadingError(KubeError):
    """A write was held back, since this process no longer knows that it leads."""


class ApiError(KubeError):
    """The API server answered with an error."""

    def __init__(
        self, message: str, *, code: int, reason: str = "", retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.retry_after_s = retry_after_s


class NotFoundError(ApiError):
    """404: no such object, or no such kind."""


class ConflictError(ApiError):
    """409: the object is another one than the resourceVersion or uid said, or a field has another owner."""


class AlreadyExistsError(ConflictError):
    """409 to a create: an object of that name is there."""


class ForbiddenError(ApiError):
    """403, or 401: the operator has no right to do that."""


class RefusedError(ApiError):
    """Admission refused the object: a quota, webhook, policy or the schema. Its words are for the user."""


class InvalidError(RefusedError):
    """The object itself is wrong: a field of it has a value that is not allowed, or is not known."""


class GoneError(ApiError):
    """410: the resourceVersion or the continue token is too old; list again."""


class TooManyRequestsError(ApiError):
    """429: the server is busy."""


_BY_CODE: dict[int, type[ApiError]] = {
    400: RefusedError,
    401: ForbiddenError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    422: RefusedError,
    429: TooManyRequestsError,
}


def from_status(code: int, body: object, *, retry_after_s: float | None = None) -> ApiError:
    """The error for an answer: `body` is a Kubernetes Status, or whatever else came."""
    status: JsonObject = body if isinstance(body, dict) else {}
    reason = str(status.get("reason") or "")
    message = str(status.get("message") or body or f"the API server answered {code}")[:2048]
    kind = _BY_CODE.get(code, ApiError)
    if code == 409 and reason == "AlreadyExists":
        kind = AlreadyExistsError
    if _is_invalid(code, reason, status):
        kind = InvalidError
    return kind(message, code=code, reason=reason, retry_after_s=retry_after_s)


def _is_invalid(code: int, reason: str, status: JsonObject) -> bool:
    """Whether the server blames the object. A policy's refusal has the same code, and names no field."""
    if code == 400:
        return reason == "BadRequest"
    causes = (status.get("details") or {}).get("causes") or ()
    return code == 422 and any(cause.get("field") for cause in causes)
