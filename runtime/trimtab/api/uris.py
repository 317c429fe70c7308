"""What `spec.checkpoint.uri` means: a folder, written as a path or as file:///path."""

from urllib.parse import unquote, urlsplit


class UriError(ValueError):
    """The text says what is wrong and what is allowed, without the field's name."""


def folder_of(uri: str) -> str:
    """The folder that a URI names, absolute or relative as it is written; UriError for any other kind."""
    scheme, found, _ = uri.partition("://")
    if not found:
        return uri
    if scheme != "file":
        raise UriError(
            f"{uri!r} has the scheme {scheme!r}; allowed are a path and file:///path. "
            "Mount the store as a volume and give its path"
        )
    parts = urlsplit(uri)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise UriError(f"{uri!r} names a host or no absolute path; written as a URI a folder is file:///path")
    if parts.query or parts.fragment:
        raise UriError(f"{uri!r} has a ? or # after the folder; write them as %3F and %23")
    return unquote(parts.path)
