"""Files of data, on disk or behind a URL."""

import re
from pathlib import Path
from typing import IO

from rlcore.api.errors import DataError, first_line

_PACKAGES = {
    **{"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"},
    **{"smb": "smbprotocol", "sftp": "paramiko", "hf": "huggingface_hub"},
}
"""Protocol of a URL → the package that fsspec needs for it."""

_URL = re.compile(r"[a-z][a-z0-9+.-]*://")


def is_url(path: str) -> bool:
    """Whether `path` is for fsspec: `s3://…`, `memory://…`, `file://…`."""
    return _URL.match(path) is not None


def open_file(path: str) -> IO[bytes]:
    """The file at a path or a URL, opened for reading. fsspec opens URLs. Raises `DataError`."""
    try:
        return _remote(path) if is_url(path) else Path(path).open("rb")
    except DataError:
        raise
    except FileNotFoundError as error:
        # fsspec raises it for whatever went wrong, a refused connection too, with the reason behind it
        if error.__cause__ is not None and not isinstance(error.__cause__, FileNotFoundError):
            raise DataError(f"{path}: cannot be read: {first_line(error.__cause__)}.") from error
        raise DataError(f"{path}: no such file.") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}.") from error
    except Exception as error:  # each file system has errors of its own, such as botocore's
        raise DataError(f"{path}: cannot be read: {type(error).__name__}: {first_line(error)}.") from error


def _remote(path: str) -> IO[bytes]:
    try:
        import fsspec
    except ImportError as error:
        raise DataError(f"{path}: a URL needs fsspec; pip install fsspec.") from error
    try:
        system, inner = fsspec.core.url_to_fs(path)
    except ImportError as error:
        package = _PACKAGES.get(path.partition("://")[0])
        advice = f"; pip install {package}" if package else ""
        raise DataError(f"{path}: {first_line(error)}{advice}.") from error
    except ValueError as error:
        raise DataError(f"{path}: fsspec knows no such URL: {first_line(error)}.") from error
    file: IO[bytes] = system.open(inner, "rb")
    return file
