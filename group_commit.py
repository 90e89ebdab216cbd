"""Threads that write while another one commits share the next commit.

A commit waits for the disk, which may take some milliseconds. sqlite_file.py uses this
module.
"""

from collections.abc import Callable
from threading import Lock

from storage import Rows, Values

Statement = tuple[str, Values]
# The rows of a statement, or its exception.
Result = Rows | Exception


class Batch:
    """Statements of several threads that one of them commits."""

    def __init__(self) -> None:
        # Held by the thread that commits this batch.
        self.lock = Lock()
        self.statements: list[Statement] = []
        # The result of each statement. None until a thread has committed the batch, and
        # never changed after that.
        self.results: list[Result] | None = None


class GroupCommit:
    """Shares commits between threads.

    There are at most two batches: one that is being committed, and one that threads
    join. No thread waits in order to gather more statements: the next batch fills while
    the disk is busy. For example:

        thread 1             thread 2                 thread 3
        joins batch A
        commits A at once    joins batch B            joins batch B
                             waits (commit_lock)      waits (the lock of B)
        returns its result   commits B
                             returns its result       returns its result

    To avoid a deadlock, a thread takes locks in this order only: `Batch.lock`,
    `commit_lock`, `_next_batch_lock`.
    """

    def __init__(self, commit: Callable[[list[Statement]], list[Result]]) -> None:
        """`commit` executes statements in one transaction, and returns their results.

        If a statement fails, its result is the exception. `commit` itself must raise
        none: the next thread of the batch would commit it again.
        """
        self._commit = commit
        # Held during each commit, so there is one at a time. `SqliteFile.close` takes
        # this lock, too.
        self.commit_lock = Lock()
        self._next_batch = Batch()  # Threads join it until its commit begins.
        self._next_batch_lock = Lock()  # Held to join it, or to replace it.

    def run(self, statement: Statement) -> Result:
        """Return the result of a statement, once its batch has been committed."""
        with self._next_batch_lock:
            batch = self._next_batch
            index = len(batch.statements)
            batch.statements.append(statement)
        # The first thread that gets this lock commits the batch. The others wait here
        # until it has ended, and find their results. (Each batch has its own lock, so
        # they do not wait for the commit of a later batch.)
        with batch.lock:
            if batch.results is None:
                # Wait until the batch before is committed. Until then, more threads may
                # join this one.
                with self.commit_lock:
                    # `_next_batch` is still `batch`: only the thread that commits a
                    # batch replaces it, and this thread has the lock of `batch`. From
                    # here on, threads join a new one, so `batch` has all its
                    # statements.
                    with self._next_batch_lock:
                        self._next_batch = Batch()
                    batch.results = self._commit(batch.statements)
        return batch.results[index]
