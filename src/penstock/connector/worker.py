"""Penstock's side of a connection to a sink, without any I/O: settle first, then one round at a time.

1. HELLO; then LIST_UNCOMMITTED.
2. Every transaction that the sink names is asked about (`asks`) and told (`tell`), and the sink asked again,
   until it names none: PHASE2 is not answered, but what is sent later is heard later. So a sink that names one again
   which it was told of does not listen, and would go on for ever: the connection fails.
3. NOTIFY for the data stream, once there is nothing left to tell. So the sink's answer says where it stands after that.
4. `ready`: a round may begin: data, PHASE1, and in time its vote (`votes`).
5. `tell` its outcome, and the sink is asked once more: `ready` again means that it has heard.

A connection that breaks is thrown away; a new one begins at 1.
"""

from __future__ import annotations

from penstock.connector.connection import Event, Failed
from penstock.connector.frames import Hello, NotifyAck, Ok
from penstock.connector.two_phase import Reply, ReplyUncommitted
from penstock.connector.working import WorkingConnection
from penstock.errors import ProtocolError
from penstock.message import Buffer


class Worker:
    def __init__(
        self,
        hello: Hello,
        connection: WorkingConnection | None = None,
        *,
        point_of_reference: int = 0,
    ) -> None:
        self.connection = connection or WorkingConnection()
        self.connection.hello(hello)
        self._tag = 0
        self._point_of_reference = point_of_reference  # where the stream stands by our account
        self.greeted = False  # the sink has said OK
        self._notified = False
        self._granted = False
        self._confirmed = 0  # the last question that was answered with "nothing"
        self._told: set[str] = set()
        self.asks: set[str] = set()  # transactions whose outcome the sink waits for
        self.votes: dict[str, bool] = {}
        self.failed: Failed | None = None
        self.reference = 0  # what the sink said when it granted the data stream

    @property
    def ready(self) -> bool:
        """Settled, and nothing that was told is still on its way."""
        return self._granted and self.connection.settled and self._confirmed == self._tag

    def receive(self, data: Buffer) -> None:
        for event in self.connection.feed(data):
            self._handle(event)

    def _handle(self, event: Event) -> None:
        match event:
            case Ok():
                self.greeted = True
                self._ask()
            case NotifyAck(success, _, reference):
                if not success:
                    self.failed = self.connection.fail("a sink must grant its data stream")
                self._granted = success
                self.reference = reference
            case ReplyUncommitted(tag, transactions):
                if again := self._told.intersection(transactions):
                    self.failed = self.connection.fail(
                        f"transaction {min(again)} is named again, and was decided before"
                    )
                    return
                self.asks.update(transactions)
                if not transactions:
                    self._confirmed = tag
                    self._open()
            case Reply(transaction, commit):
                self.votes[transaction] = commit
            case Failed():
                self.failed = event

    def _ask(self) -> None:
        self._tag += 1
        self.connection.list_uncommitted(self._tag)

    def _open(self) -> None:
        if not self._notified:
            self._notified = True
            self.connection.notify(self._point_of_reference)

    def tell(self, transaction: str, commit: bool) -> None:
        """The outcome of a transaction. Its decision must be in the log by now."""
        if commit and self.votes.get(transaction) is False:
            raise ProtocolError(f"transaction {transaction} was voted to be rolled back")
        self.connection.phase2(transaction, commit)
        self.asks.discard(transaction)
        self._told.add(transaction)
        if not self.asks:
            self._ask()
            self._open()

    def left(self, workers: tuple[str, ...]) -> None:
        """These workers will never come back. `ready` again means that the sink has heard."""
        self._tag += 1
        self.connection.workers_left(self._tag, workers)
        self._ask()
