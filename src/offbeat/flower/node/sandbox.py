"""What keeps an app in its place: a limit of memory, another user, and files that it cannot open.

The app of a run is somebody else's code. It never gets the node's private key from us; this is to keep it from taking
it. Landlock (Linux 5.13 and later) can only allow: so everything is allowed but the way to the hidden files, which are
the folders they lie in, one by one. A process under Landlock may also not look into the memory of one that is not.
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
"""All rights about files that each version knows, one more each; what later ones add is left alone."""
_ON_FILES = 0b100_0000_0000_0111
"""Execute, write, read and truncate: the rights that make sense for a file. The others are for folders."""
_LIST = 0b1000
"""The right to see what is in a folder."""


class Limits(Struct, frozen=True, kw_only=True):
    """What a child may have. It is plain data, and goes to the process that starts children."""

    memory_mb: int | None = None
    user: str | None = None
    hidden: list[str] = []
    """Files that it cannot open, and folders that it cannot look into."""


def check_limits(limits: Limits) -> None:
    """Raise InvalidInput if a child cannot be held to these."""
    if limits.user is not None:
        try:
            pwd.getpwnam(limits.user)
        except KeyError:
            raise InvalidInput(f"--child-user {limits.user}: there is no such user") from None
        if os.geteuid() != 0:
            raise InvalidInput(f"--child-user {limits.user}: only root may run the app as another user")


def apply(limits: Limits) -> None:
    """Hold this process, and all that it starts, to these limits. There is no way back."""
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
        _prctl(_PR_SET_PDEATHSIG, 9)  # which a change of user has cleared
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def guard_own_memory() -> None:
    """Make this process one that others of the same user can neither trace nor look into."""
    _prctl(_PR_SET_DUMPABLE, 0)


def landlock_version() -> int:
    """Which version of Landlock the kernel has; 0: none."""
    if sys.platform != "linux":
        return 0
    found: int = _libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    return max(0, found)


def hide(hidden: Sequence[Path]) -> None:
    """Let this process open every file but these, and nothing below them."""
    rights = _RIGHTS[min(3, landlock_version())]
    libc = _libc()
    attributes = ctypes.create_string_buffer(struct.pack("=Q", rights))
    rules = _checked(libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(8), ctypes.c_uint32(0)))

    def allow(path: Path, allowed: int) -> None:
        try:
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return  # it has just gone
        rule = ctypes.create_string_buffer(struct.pack("=Qi", allowed, opened))
        libc.syscall(_ADD_RULE, rules, ctypes.c_int(_RULE_PATH_BENEATH), rule, ctypes.c_uint32(0))
        os.close(opened)

    allow(Path("/"), _LIST)  # Python looks for modules by listing folders; names are no secret
    for path in _around({path.resolve() for path in hidden}):
        allow(path, rights if path.is_dir() else rights & _ON_FILES)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _checked(libc.syscall(_RESTRICT_SELF, rules, ctypes.c_uint32(0)))
    os.close(rules)


def _around(hidden: set[Path]) -> Iterator[Path]:
    """Everything there is but these: what lies beside each of them, and beside each folder above it."""
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
