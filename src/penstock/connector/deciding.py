"""One transaction's coordinator: the other half of two-phase commit, without any I/O. Presumed abort.

1. Every participant is asked to prepare. It votes, or is lost (its connection broke, or it took too long).
2. If all voted to commit, the decision is to commit, and is logged: the point of no return. Anything else
   rolls back; nothing need be logged for that, since what is not in the log is presumed rolled back.
3. Every participant is told, again and again until it has heard. Participants that come back with an
   undecided transaction are told what the log says.

A vote to roll back is final: nothing that comes later makes it a commit.
"""

from __future__ import annotations

from collections.abc import Iterable


class Decision:
    """The votes on one transaction, and what follows from them."""

    def __init__(self, transaction: str, participants: Iterable[str]) -> None:
        self.transaction = transaction
        self._waiting = set(participants)
        self._against = False
        self.logged = False

    def vote(self, participant: str, commit: bool) -> None:
        """A vote counts once; one of a stranger, or after the participant was lost, does not."""
        if participant in self._waiting:
            self._waiting.discard(participant)
            self._against |= not commit

    def lost(self, participant: str) -> None:
        """No vote will come. One that had voted may be lost without harm."""
        if participant in self._waiting:
            self._waiting.discard(participant)
            self._against = True

    @property
    def outcome(self) -> bool | None:
        """True: commit, once `logged`. False: roll back. None: votes are missing."""
        if self._against:
            return False
        return None if self._waiting else True
