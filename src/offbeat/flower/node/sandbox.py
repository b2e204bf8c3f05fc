"""Restricts a child process: a memory limit, another user, and files that it cannot open.

The app of a run is foreign code, and must not read the node's private key. Landlock (Linux 5.13 and later) can only
allow access: so everything is allowed except the hidden files and the folders on the way to them. A process under
Landlock can also not read the memory of a process outside it.
"""

import ctypes
import os
import pwd
import resource
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from offbeat.core.errors import InvalidInput

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_RULE_PATH_BENEATH = 1
_RIGHTS = {1: 2**13 - 1, 2: 2**14 - 1, 3: 2**15 - 1}
"""All file rights by Landlock version, one more in each; rights of later versions are not restricted."""
_ON_FILES = 0b100_0000_0000_0111
"""Execute, write, read and truncate: the rights that apply to a file. The others are for folders."""
_LIST = 0b1000
"""The right to list a folder."""


class Limits(Struct, frozen=True, kw_only=True):
    """Restrictions of a child. Plain data, which is sent to the fork server."""

    memory_mb: int | None = None
    user: str | None = None
    hidden: list[str] = []
    """Files that it cannot open, and folders in which it cannot open anything."""


def check_limits(limits: Limits) -> None:
    """Raise InvalidInput if these limits cannot be applied on this machine."""
    if limits.user is not None:
        try:
            pwd.getpwnam(limits.user)
        except KeyError:
            raise InvalidInput(f"user {limits.user!r} for apps: no such user") from None
        if os.geteuid() != 0:
            raise InvalidInput(f"user {limits.user!r} for apps: only root can run apps as another user")


def apply(limits: Limits) -> None:
    """Apply the limits to this process and all that it starts. They cannot be lifted again."""
    _prctl(_PR_SET_PDEATHSIG, 9)
    if limits.memory_mb is not None:
        size = limits.memory_mb * 2**20
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if limits.hidden and landlock_version():
        hide([Path(path) for path in limits.hidden])
    if limits.user is not None:
        account = pwd.getpwnam(limits.user)
        os.initgroups(account.pw_name, account.pw_gid)
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)
        os.environ["HOME"] = account.pw_dir
        _prctl(_PR_SET_PDEATHSIG, 9)  # again: changing the user has cleared it
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def guard_own_memory() -> None:
    """Prevent other processes of the same user from tracing this process or reading its memory."""
    _prctl(_PR_SET_DUMPABLE, 0)


def landlock_version() -> int:
    """The kernel's version of Landlock; 0: none."""
    if sys.platform != "linux":
        return 0
    found: int = _libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    return max(0, found)


def hide(hidden: Sequence[Path]) -> None:
    """Forbid this process to open these files and anything below these folders."""
    rights = _RIGHTS[min(3, landlock_version())]
    libc = _libc()
    attributes = ctypes.create_string_buffer(struct.pack("=Q", rights))
    rules = _checked(libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(8), ctypes.c_uint32(0)))

    def allow(path: Path, allowed: int) -> None:
        try:
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return  # it was deleted in the meantime
        rule = ctypes.create_string_buffer(struct.pack("=Qi", allowed, opened))
        libc.syscall(_ADD_RULE, rules, ctypes.c_int(_RULE_PATH_BENEATH), rule, ctypes.c_uint32(0))
        os.close(opened)

    allow(Path("/"), _LIST)  # Python lists folders to find modules; names are no secret
    for path in _around({path.resolve() for path in hidden}):
        allow(path, rights if path.is_dir() else rights & _ON_FILES)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _checked(libc.syscall(_RESTRICT_SELF, rules, ctypes.c_uint32(0)))
    os.close(rules)


def _around(hidden: set[Path]) -> Iterator[Path]:
    """All paths except these: the siblings of each, and of each folder above it."""
    above = {folder for path in hidden for folder in path.parents}
    for folder in sorted(above):
        for entry in sorted(folder.iterdir()):
            if entry not in hidden and entry not in above and not entry.is_symlink():
                yield entry


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        _libc().prctl(option, value, 0, 0, 0)


def _checked(result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"Landlock: {os.strerror(error)}")
    return result
