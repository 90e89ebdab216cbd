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
        # Held by the thread that commits this batch. The others wait for it, and then
        # take their results, even while the next batch is committed.
        self.lock = Lock()
        self.statements: list[Statement] = []
        # The result of each statement. None until a thread has committed the batch.
        self.results: list[Result] | None = None


class GroupCommit:
    """Shares commits between threads.

    At most two batches are not committed yet: one is being committed, and threads join
    the next one. For example:

        thread 1             thread 2                 thread 3
        joins batch A
        commits A            joins batch B            joins batch B
                             waits for A              waits for B
        returns its result   commits B
                             returns its result       returns its result

    A thread that holds a lock takes only a later one of `Batch.lock`, `commit_lock` and
    `_next_batch_lock`. So no two threads wait for each other.
    """

    def __init__(self, commit: Callable[[list[Statement]], list[Result]]) -> None:
        """`commit` executes statements in one transaction, and returns their results.

        If a statement fails, its result is the exception. `commit` itself raises none.
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
        # until it has ended, and find their results.
        with batch.lock:
            if batch.results is None:
                # Wait until the batch before is committed. Until then, more threads may
                # join this one.
                with self.commit_lock:
                    # The next batch is still this one: only the thread that commits a
                    # batch replaces it. From here on, threads join a new one, so the
                    # statements of this one are complete.
                    with self._next_batch_lock:
                        self._next_batch = Batch()
                    batch.results = self._commit(batch.statements)
        return batch.results[index]
