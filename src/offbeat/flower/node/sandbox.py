"""Confines the processes of apps, which are foreign code: what they can read, write, signal, reach and use up.

Nothing here can be lifted by the confined process or by what it starts, and each process only adds restrictions:

1. This file is also a script, with the standard library only: `python -I -S sandbox.py LIMITS COMMAND ...` confines
   itself and then executes the fork server, which therefore never runs a line unconfined.
2. The keeper of a run (see `fork_server`) may write only to the folder of its run, and signal only that run.
3. The app drops the rest: another user if there is one, capabilities, signals to its keeper, memory, processes.

Landlock (Linux 5.13) grants access to a list of paths and denies all others; from version 6 (Linux 6.12) it also keeps
signals and abstract sockets inside. A network filter (seccomp) allows Unix sockets only. bubblewrap would do the same
with namespaces, but many machines forbid those to ordinary users, and it would confine the fork server as a whole, not
one run from another.
"""

import ctypes
import json
import os
import platform
import pwd
import resource
import struct
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP = 1, 4, 22
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_RULE_PATH_BENEATH = 1
_RIGHTS = {1: 2**13 - 1, 2: 2**14 - 1, 3: 2**15 - 1, 4: 2**15 - 1, 5: 2**16 - 1}
"""All file rights by Landlock version; rights of later versions are not restricted."""
_ON_FILES = 0b1100_0000_0000_0111
"""Execute, write, read, truncate and ioctl: the rights that apply to a file. The others are for folders."""
_READ = 0b1101
"""Execute, read and list."""
_MAKE_DEVICES = 0b1000_0100_0000
_SCOPES = 0b11
"""Abstract Unix sockets and signals."""
SCOPED = 6
"""Landlock version that keeps signals inside."""

SYSTEM = [
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/opt/rocm", "/proc"),
    *("/sys/devices", "/sys/class", "/sys/bus", "/sys/fs/cgroup", "/sys/module"),
    *("/etc/ld.so.cache", "/etc/ld.so.preload", "/etc/localtime", "/etc/timezone", "/etc/os-release"),
    *("/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/hosts", "/etc/host.conf", "/etc/resolv.conf"),
    *("/etc/gai.conf", "/etc/services", "/etc/protocols", "/etc/mime.types", "/etc/machine-id", "/etc/fonts"),
    *("/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/ssl/openssl.cnf", "/etc/ca-certificates", "/etc/pki/tls/certs"),
    *("/etc/pki/ca-trust", "/etc/crypto-policies", "/etc/alternatives", "/etc/OpenCL", "/etc/vulkan"),
]
"""What Python, torch and drivers read."""
DEVICES = [
    *("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/shm"),
    *("/dev/dri", "/dev/kfd", "/dev/nvidia*", "/dev/nvhost*", "/dev/nvmap", "/dev/dxg"),
]
"""What any process may write to: harmless devices, shared memory (torch's data loaders need it) and accelerators."""
_ARCHITECTURES = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
"""Number of the architecture for seccomp, and of the system call `socket`."""
_IO_URING_SETUP = 425


@dataclass(frozen=True, kw_only=True)
class AppLimits:
    """Restrictions of apps. Plain data, which is sent to other processes."""

    readable: Sequence[str] = ()
    """Folders and files that they can read, besides `SYSTEM`."""
    writable: Sequence[str] = ()
    """Folders and files that they can change, besides `DEVICES` and the folder of their run."""
    network: bool = True
    """Whether they can use the network."""
    user: str | None = None
    """The user that they run as; None: the node's."""
    memory_mb: int | None = None
    """Memory of a run, where there is a cgroup, and of each of its processes."""
    processes: int | None = None
    """Processes and threads of a run, where there is a cgroup; otherwise this many more than the user has."""


def landlock_version() -> int:
    """The kernel's version of Landlock; 0: none."""
    if sys.platform != "linux":
        return 0
    found: int = _libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    return max(0, found)


def can_cut_network() -> bool:
    """Whether `cut_network` works on this machine."""
    return sys.platform == "linux" and platform.machine() in _ARCHITECTURES


def needed_by_python() -> list[str]:
    """The folders of this interpreter and of its packages, for `AppLimits.readable`."""
    executable = Path(sys.executable)
    found = [*import_path(), sys.prefix, sys.base_prefix, executable.parent, executable.resolve().parent]
    return list(dict.fromkeys(str(path) for path in found))


def import_path() -> list[str]:
    """Where the fork server and apps may import from: `sys.path` without the working directory."""
    return [path for path in sys.path if Path(path).is_absolute() and Path(path).resolve() != Path.cwd()]


# What a process does to itself ----------------------------------------------------------------------------------------


def confine_fork_server(limits: AppLimits) -> None:
    """Restrict files, signals and the network."""
    restrict_files(limits)
    if not limits.network:
        cut_network()
    if limits.user is None:
        drop_capabilities()


def confine_keeper(limits: AppLimits, folder: str) -> None:
    """Restrict writing to the folder of a run, and signals to that run; adopt all processes of the run."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    restrict_files(limits, folder)


def confine_app(limits: AppLimits, folder: str) -> None:
    """Restrict signals to the app itself, memory and processes, become another user if there is one."""
    if landlock_version() >= SCOPED:
        _restrict(_ruleset(0, scoped=True))
    if limits.memory_mb is not None:
        size = limits.memory_mb * 2**20
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if limits.user is not None:
        account = pwd.getpwnam(limits.user)
        os.initgroups(account.pw_name, account.pw_gid)
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)
    if limits.processes is not None and sys.platform == "linux":
        most = _threads_of(os.getuid()) + limits.processes
        resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    _prctl(_PR_SET_PDEATHSIG, 9)  # it ends with its keeper; changing the user would have cleared this
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    os.environ.update(HOME=folder, TMPDIR=folder)
    tempfile.tempdir = folder


def restrict_files(limits: AppLimits, folder: str | None = None) -> None:
    """Deny all files but those that the limits and the system grant, and `folder`; nothing without Landlock."""
    version = landlock_version()
    if not version:
        return
    rights = _RIGHTS[min(5, version)]
    rules = _ruleset(rights, scoped=version >= SCOPED)
    grants = [(path, _READ) for path in (*SYSTEM, *limits.readable)]
    grants += [(path, rights & ~_MAKE_DEVICES) for path in (*limits.writable, *([] if folder is None else [folder]))]
    grants += [(str(path), rights & ~_MAKE_DEVICES) for name in DEVICES for path in Path("/").glob(name[1:])]
    for path, allowed in grants:
        _allow(rules, Path(path).resolve(), allowed)
    _restrict(rules)


def cut_network() -> None:
    """Deny all sockets but Unix sockets, and io_uring, which could make others."""
    number, call = _ARCHITECTURES[platform.machine()]
    load, equal, at_least, end = 0x20, 0x15, 0x35, 0x06
    allow, deny = (end, 0, 0, 0x7FFF0000), (end, 0, 0, 0x00050000 | 13)  # EACCES
    steps = [
        (load, 0, 0, 4),  # the architecture
        (equal, 0, 6, number),
        (load, 0, 0, 0),  # the system call
        (at_least, 4, 0, 0x40000000),  # the x32 variant of x86_64
        (equal, 3, 0, _IO_URING_SETUP),
        (equal, 0, 3, call),
        (load, 0, 0, 16),  # its first argument
        (equal, 1, 0, 1),  # AF_UNIX
        deny,
        allow,
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _checked(_libc().prctl(_PR_SET_SECCOMP, 2, program, 0, 0), "seccomp")


def drop_capabilities() -> None:
    """Give up the rights of root beyond its files; no effect for other users."""
    if sys.platform == "linux":
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        header, none = struct.pack("=Ii", 0x20080522, 0), bytes(24)
        _checked(_libc().capset(header, none), "capset")


def adopt_orphans() -> None:
    """Become the parent of all descendants whose parents have ended."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def guard_own_memory() -> None:
    """Prevent other processes of the same user from tracing this process or reading its memory."""
    _prctl(_PR_SET_DUMPABLE, 0)


# Landlock -------------------------------------------------------------------------------------------------------------


def _ruleset(rights: int, *, scoped: bool) -> int:
    attributes = struct.pack("=QQQ", rights, 0, _SCOPES) if scoped else struct.pack("=Q", rights)
    buffer, size = ctypes.create_string_buffer(attributes), ctypes.c_size_t(len(attributes))
    return _checked(_libc().syscall(_CREATE_RULESET, buffer, size, ctypes.c_uint32(0)), "Landlock")


def _allow(rules: int, path: Path, allowed: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # this machine has no such path
    rule = ctypes.create_string_buffer(struct.pack("=Qi", allowed if path.is_dir() else allowed & _ON_FILES, opened))
    rule_type, flags = ctypes.c_int(_RULE_PATH_BENEATH), ctypes.c_uint32(0)
    result = _libc().syscall(_ADD_RULE, rules, rule_type, rule, flags)
    os.close(opened)
    _checked(result, f"Landlock, {path}")


def _restrict(rules: int) -> None:
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _checked(_libc().syscall(_RESTRICT_SELF, rules, ctypes.c_uint32(0)), "Landlock")
    os.close(rules)


def without(path: Path, hidden: Collection[Path]) -> Iterator[Path]:
    """This path, or, if something in it is hidden, everything in it that is not: Landlock can only grant."""
    if not any(each == path or path in each.parents or each in path.parents for each in hidden):
        yield path
    elif any(path in each.parents for each in hidden) and not any(each in path.parents for each in hidden):
        for entry in sorted(path.iterdir()):
            if not entry.is_symlink():
                yield from without(entry, hidden)


# The system -----------------------------------------------------------------------------------------------------------


def _threads_of(user: int) -> int:
    """Threads of all processes of a user, as RLIMIT_NPROC counts them."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.stat().st_uid == user:
                count += sum(1 for _ in (process / "task").iterdir())
        except OSError:
            continue  # it has ended
    return count


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        _libc().prctl(option, value, 0, 0, 0)


def _checked(result: int, what: str) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return result


if __name__ == "__main__":
    confine_fork_server(AppLimits(**json.loads(sys.argv[1])))
    os.execv(sys.argv[2], sys.argv[2:])
