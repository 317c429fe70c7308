from pathlib import Path

import pytest

from trimtab.api.operations import CheckpointSpec
from trimtab.api.uris import UriError, folder_of


@pytest.mark.parametrize(
    ("uri", "folder"),
    [
        ("/runs/a", "/runs/a"),
        ("shared", "shared"),
        ("file:///runs/a", "/runs/a"),
        ("file://localhost/runs/a", "/runs/a"),
        ("file:///runs/my%20run%3F", "/runs/my run?"),
        ("/runs/a:b", "/runs/a:b"),
    ],
)
def test_folder_of_a_path_and_of_a_file_uri(uri: str, folder: str) -> None:
    assert folder_of(uri) == folder


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("s3://bucket/run", "has the scheme 's3'; allowed are a path and file:///path"),
        ("file://nas/runs/a", "names a host or no absolute path"),
        ("file://", "names a host or no absolute path"),
        ("file:///runs/a?b", "write them as %3F and %23"),
    ],
    ids=["an object store", "another host", "no path", "a question mark"],
)
def test_uri_that_is_no_folder_here_says_what_is_allowed(uri: str, text: str) -> None:
    with pytest.raises(UriError, match=text):
        folder_of(uri)


@pytest.mark.parametrize(
    ("uri", "directory"),
    [
        (None, "/runs/a/checkpoints"),
        ("shared", "/runs/a/shared"),
        ("/shared", "/shared"),
        ("file:///shared", "/shared"),
    ],
    ids=["none", "a relative path", "an absolute path", "a URI"],
)
def test_checkpoints_of_a_run_are_where_the_uri_says(uri: str | None, directory: str) -> None:
    assert CheckpointSpec(uri=uri).directory(Path("/runs/a")) == Path(directory)
