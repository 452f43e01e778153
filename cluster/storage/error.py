"""The errors of a node's folder on disk, by what its operator can do about them."""

from __future__ import annotations

from fencelock.actors.error import FencelockError


class StorageError(FencelockError):
    """Base of the errors about a node's folder on disk. Never raised itself."""


class FolderBusyError(StorageError):
    """Another journal, here or in another process, has the folder open. Nothing was touched."""


class JournalDamagedError(StorageError):
    """The disk's content is not what was written. The node must not use it; nothing was changed."""


class JournalForeignError(StorageError):
    """The folder belongs to another node, cluster or set of members. Nothing was changed."""


class JournalFailedError(StorageError):
    """The disk refused a write. Unsynced records may be lost; the journal is closed for use.

    The node must stop before it sends anything that depends on the lost records; restart it.
    """
