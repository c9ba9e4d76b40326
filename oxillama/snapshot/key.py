"""The user's secret key, which shows that a file of stored prefixes was written by this user.

The key is 32 random bytes in a file that only its owner can read, made when prefixes are first
saved: the file named by OXILLAMA_KEY_FILE, otherwise `oxillama/key` in the user's configuration
folder ($XDG_CONFIG_HOME, ~/.config; on Windows %APPDATA%, where the permissions are those of the
user's profile, which other users cannot read: files have no mode there, and none is checked).
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from blake3 import blake3

from oxillama.durable import replacing, write_at
from oxillama.errors import ConfigError
from oxillama.folders import user_folder

KEY_BYTES = 32


def key_path() -> Path | None:
    """The path of the key; None for a user without a home folder."""
    named = os.environ.get("OXILLAMA_KEY_FILE")
    if named:
        return Path(named)
    try:
        return user_folder("config") / "key"
    except RuntimeError:
        return None


def read_key() -> bytes | None:
    """The key; None if there is none. ConfigError for a file that is not a key, or that others can
    read or could have written.
    """
    path = key_path()
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            status, key = os.fstat(file.fileno()), file.read(KEY_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(
            f"key: {path} cannot be read: {error.strerror}, wanted a key file of this user"
        ) from error
    if len(key) != KEY_BYTES or not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"key: {path} holds {len(key)} bytes, wanted a file of {KEY_BYTES}")
    if hasattr(os, "getuid") and (status.st_mode & 0o077 or status.st_uid != os.getuid()):
        raise ConfigError(
            f"key: {path} has mode {stat.S_IMODE(status.st_mode):o} and owner {status.st_uid}, "
            f"wanted 600 and {os.getuid()}"
        )
    return key


def make_key() -> bytes | None:
    """The key, created if there is none; None if it cannot be stored: no home folder, or one that
    is not writable.
    """
    found, path = read_key(), key_path()
    if found is not None or path is None:
        return found
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(path, mode=0o600, keep_existing=True) as fd:
            write_at(fd, 0, [secrets.token_bytes(KEY_BYTES)])
    except OSError:
        return None
    return read_key()  # another process may have been first


def authenticate(key: bytes, digests: Mapping[str, bytes]) -> bytes:
    """Keyed BLAKE3 (32 bytes) of the names and hashes of a file's sections."""
    hasher = blake3(key=key)
    for name, digest in sorted(digests.items()):
        hasher.update(name.encode("ascii").ljust(16, b"\0") + digest)
    return hasher.digest()
