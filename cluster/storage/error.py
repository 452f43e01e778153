"""What can go wrong with what a node keeps on disk, by what its operator can do about it."""

from __future__ import annotations

from fencelock.actors.error import FencelockError


class StorageError(FencelockError):
    """Base of the errors about a node's folder on disk. Never raised itself."""


class FolderBusyError(StorageError):
    """Another journal, here or in another process, has the folder open. Nothing was touched."""


class JournalDamagedError(StorageError):
    """What is on disk is not what was written. The node must not act on it; nothing was changed."""


class JournalForeignError(StorageError):
    """The folder belongs to another node, cluster or set of members. Nothing was changed."""


class JournalFailedError(StorageError):
    """The disk refused a write. What was not yet synced may be lost; the journal is closed for use.

    The node must stop before it speaks of what it could not keep, and is started anew.
    """
