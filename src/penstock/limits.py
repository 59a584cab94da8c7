"""Every limit, in one place, with its reason. Options may lower or raise those marked (default).

Sizes are in bytes, times in seconds, unless the name says otherwise.
"""

from __future__ import annotations

from typing import Final

KiB: Final = 1024
MiB: Final = 1024 * KiB
GiB: Final = 1024 * MiB

# --- Messages ---------------------------------------------------------------------------------
MAX_MESSAGE_BYTES: Final = 8 * MiB
"""(default) One payload. Larger things belong in a store, with a message that points there."""

MAX_META_BYTES: Final = 64 * KiB
"""Meta of one message, encoded. It rides along in memory through every stage."""

MAX_KEY_BYTES: Final = 4 * KiB
"""A message key. Keys are compared and hashed, never shipped for their content."""

MAX_STREAM_NAME_BYTES: Final = 256
"""A stream's name. It is part of every event id, and so of every receipt."""

# --- Names ------------------------------------------------------------------------------------
MAX_NAME_CHARS: Final = 100
"""Namespaces and topics: they become folder names."""

# --- The log ----------------------------------------------------------------------------------
MAX_PARTITIONS: Final = 1024
"""Per topic: each costs a folder, a thread while written, and a file or two."""

SEGMENT_BYTES: Final = 128 * MiB
"""(default) A segment is sealed at this size: small enough to re-pack in a second or so."""

SEGMENT_FRAMES: Final = 65_536
"""A segment is sealed at this many frames: bounds recovery and the cost of re-packing."""

SEGMENT_AGE_S: Final = 3600.0
"""(default) A segment that holds anything is sealed at this age, so that quiet topics re-pack too."""

MAX_FRAME_BYTES: Final = 32 * MiB
"""One frame of the embedded log. A reader never maps or checks more than this at once."""

MAX_ROW_BYTES: Final = MAX_FRAME_BYTES - 64 * KiB
"""One row, with its id, key and meta: no more than this is left of a frame by an Arrow stream and our metadata."""

LARGEST_MESSAGE_BYTES: Final = MAX_FRAME_BYTES - 1 * MiB
"""The most that `max_message_bytes` may be. What a receiver accepts must fit into a row of every topic: with its meta
and key, in a park with where it came from, and as a dead letter with its receipt."""

RECEIPT_BYTES: Final = 256 * KiB
"""What of a row is left free for its receipt, should it become a dead letter: half of that is a thousand branches."""

MAX_GROUP_BYTES: Final = 16 * MiB
"""What one fsync covers. More waits for the next one, so that no waiter waits without bound."""

PACKED_ROWS: Final = 10_000
"""Rows of a re-packed Arrow batch: past this reading gets no faster, look-ups get slower."""

PACKED_BYTES: Final = 8 * MiB
"""Bytes of a re-packed Arrow batch, where messages are large."""

WHOLE_FRAME_BYTES: Final = 512 * KiB
"""An Arrow frame of this size stays as it was appended: writing it again would cost more than its readers save."""

GATHERED_FRAME_BYTES: Final = 128 * KiB
"""Frames up to this size are read together: above it, an Arrow batch costs less than the copy."""

GATHERED_BYTES: Final = 8 * MiB
"""What is read together, at most, beside PACKED_ROWS: it is a copy, so this much memory."""

MAX_APPEND_FRAME_BYTES: Final = MAX_FRAME_BYTES + 1 * MiB
"""A frame between an appender and the owner of a partition: what the log takes at once, and its head."""

MAX_APPEND_BATCHES: Final = 65_536
"""Batches in one such frame: bounds what its head unpacks to."""

MAX_APPEND_CONNECTIONS: Final = 1024
"""Appenders connected to one owner. The other edge processes need one each for every partition."""

APPEND_TIMEOUT_S: Final = 30.0
"""(default) How long an appender waits for the owner of a partition to come back, or to answer."""

FORWARD_TIMEOUT_S: Final = 10.0
"""How long an edge process holds a message for a partition whose owner is away: a restart fits in."""

MAX_FORWARDED_FRAMES: Final = 4
"""Frames under way to an owner; what comes meanwhile shares the next, as it shares an fsync there."""

LOCK_WAIT_S: Final = 10.0
"""How long a process that owns partitions waits for one to be let go: appenders give way at once,
the keeper after sealing a segment."""

GIVE_WAY_S: Final = 0.1
"""How often an appender that holds a partition looks whether another process waits for it."""

FAREWELL_S: Final = 3.0
"""How long an owner that stops still serves other edge processes, which may be stopping too."""

EXPANDED_META_BYTES: Final = 32 * MiB
"""Meta in one batch that is read. The edge stores that of a body once for all its messages; a reader
gets it with each, so that a small body of many messages could fill its memory."""

MAX_PENDING_BYTES: Final = 64 * MiB
"""(default) Accepted and not yet durable, per partition, with what a message takes beside its payload. Past
it the edge pushes back."""

PREALLOCATE_BYTES: Final = 4 * MiB
"""Zero-filled ahead of small commits, so that fdatasync need not record a new file size."""

MAX_NUMBERED_STREAMS: Final = 100_000
"""Numbered streams remembered per partition; one more is refused until an idle one expires."""

STREAM_EXPIRY_S: Final = 7 * 86_400.0
"""A numbered stream that was silent this long may be forgotten to make room for a new one."""

MAX_ROW_PRODUCERS: Final = 10_000
"""Producers of rows (a coordinator each) remembered per partition, in every sidecar."""

MAX_IDEMPOTENCY_KEYS: Final = 500_000
"""`Idempotency-Key` values remembered per partition, newest first: about 90 MB when full."""

STREAM_RUNS: Final = 4096
"""Runs of sequence numbers remembered per stream, to answer a repeat with its first offset."""

MAX_STREAM_RUNS: Final = 500_000
"""Runs remembered per partition, over all its streams: about 100 MB when full."""

DISK_RETRY_S: Final = 1.0
"""After a full disk, how long appends are refused before the disk is tried again."""

# --- The edge ---------------------------------------------------------------------------------
MAX_PROCESSES: Final = 64
"""Edge processes. Past the number of cores they only get in each other's way."""

MAX_CONNECTIONS: Final = 10_000
"""(default) Open connections of one receiver in one process."""

MAX_BODY_BYTES: Final = 64 * MiB
"""(default) An HTTP body of many messages."""

MAX_HEADER_BYTES: Final = 32 * KiB
"""An HTTP request's line and headers together (431 past it)."""

MAX_HEADERS: Final = 128
"""An HTTP request's header fields (431 past it)."""

MAX_KNOWN_HEADS: Final = 1024
"""Distinct request heads whose meaning an HTTP receiver remembers; past it, it starts over."""

MAX_KNOWN_HEAD_BYTES: Final = 2 * KiB
"""A head worth remembering: long ones hold cookies and traces, which come once."""

MAX_QUERY_FIELDS: Final = 128
"""Query parameters of one request: each becomes meta."""

MAX_CHUNK_LINE_BYTES: Final = 4 * KiB
"""The line before a chunk of an HTTP body: its size, and extensions that nobody needs."""

LINGER_S: Final = 2.0
LINGER_BYTES: Final = 64 * MiB
"""After an answer that ends a connection in the middle of a request, how long and how much is read and
dropped, so that the client comes to read the answer."""

MAX_PIPELINED: Final = 128
"""HTTP requests of one connection that wait for an answer; reading stops until some are answered."""

MAX_INFLIGHT_BYTES: Final = 256 * MiB
"""(default) Bodies, or messages of TCP and unix connections, that are half received, over all connections of
one receiver in one process: each may be large, and there may be ten thousand."""

MAX_BATCH_EVENTS: Final = 1_000_000
"""Messages in one HTTP body: bounds the memory of their lengths and ids."""

MAX_WAITING: Final = 20_000
"""Senders of one edge process that wait for a receipt. One more is not kept waiting."""

MAX_UNANSWERED_READS: Final = 64
"""Reads of one TCP or unix connection whose messages wait for an answer; then reading stops."""

RECEIPTS_A_QUERY: Final = 10_000
"""Receipts fetched from their database at a time, however many messages a sender waits for."""

MAX_LISTED_RECEIPTS: Final = 100
"""Receipts in the answer for a body of many messages: of the first that are not done. All are counted."""

MAX_SEARCHED_ROWS: Final = 5_000_000
"""Messages looked through for one with a certain id, when nobody knows where it is: a second or so."""

MAX_LOOKUPS: Final = 64
"""Receipts being looked up at a time by one HTTP receiver in one process; more are answered 503."""

MAX_CLOUDEVENTS: Final = 10_000
"""CloudEvents in one batch. Each has meta of its own to be checked, while everyone else waits."""

HEADER_TIMEOUT_S: Final = 10.0
"""(default) From the first byte of a request to the end of its headers: slow-loris clients."""

BODY_TIMEOUT_S: Final = 30.0
"""(default) The longest silence inside a body."""

IDLE_TIMEOUT_S: Final = 75.0
"""(default) A kept-alive HTTP connection with nothing to do."""

STREAM_IDLE_TIMEOUT_S: Final = 3600.0
"""(default) A silent TCP or unix connection."""

STOP_TIMEOUT_S: Final = 30.0
"""(default) A graceful stop that has not finished by then becomes a hard one."""

STOP_GRACE_S: Final = 5.0
"""In a graceful stop, how long those who are in the middle of something may take to finish it."""

STREAM_READ_BYTES: Final = 1 * MiB
"""One read of a TCP or unix connection: larger reads make larger batches, and fewer of them."""

DATAGRAMS_A_TURN: Final = 2048
"""Datagrams taken before other sockets get their turn."""

MAX_DATAGRAM_BYTES: Final = 65_535
"""UDP's own limit; unix datagrams are held to it too."""

RECV_BUFFER_BYTES: Final = 32 * MiB
"""(default) A datagram socket's buffer in the kernel: what may arrive while the edge is busy, or waits for
its turn on a busy machine. Half a second of small datagrams at 150 thousand a second."""

MAX_UDP_STREAMS: Final = 100_000
"""Sender addresses told apart at a time; the one silent longest makes room."""

# --- The connector protocol -------------------------------------------------------------------
MAX_CONNECTOR_FRAME_BYTES: Final = 16 * MiB
"""(default) One frame of the connector protocol; its sender is told, and the connection closed."""

MAX_CONNECTOR_FIRST_FRAME_BYTES: Final = 300 * KiB
"""The first frame of a connection, before anyone knows who it is. A HELLO has at most 256 KiB, in four fields; whoever
says something else is not to have memory set aside for it."""

CONNECTOR_CREDITS: Final = 100_000
"""(default) Frames that an extension may send ahead of what is durable: about 20 MB of small ones."""

MAX_CONNECTOR_STREAMS: Final = 10_000
"""Streams that one connection may have open; one more is refused with ERROR."""

MAX_CONNECTOR_WAITING_BYTES: Final = 16 * MiB
"""Of one connection, read and not yet durable: past it the connection is not read."""

CONNECTOR_READ_BYTES: Final = 2 * MiB
"""One read of a `receiver.connector`, whose frames are cut many at once: about one batch of the log, of small ones."""

MAX_CONNECTOR_WORKERS: Final = 256
"""Task slots of a `sink.connector`: each is a worker that the program keeps state for."""

SDK_PACK_BYTES: Final = 256 * KiB
"""Single messages that a source of the SDK joins at most: larger pieces gain nothing on a socket."""

SDK_WAITING_BYTES: Final = 32 * MiB
"""What a source of the SDK holds until it is acknowledged; past it, `write` waits."""

SDK_TURN_MESSAGES: Final = 4000
"""Messages that one stream of a source sends while others wait for their turns."""

SDK_REFUSALS: Final = 5
SDK_REFUSED_S: Final = 20.0
"""A source gives up when it was sent the same ERROR so often in a row, for at least so long: a log that is behind, or a
process that comes back, has caught up by then; a message that is too large never is taken."""

SDK_READ_AHEAD: Final = 256
"""Messages that `feed` of the asyncio source reads before they are written: the loop has a turn in between."""

CONNECTOR_HELLO_TIMEOUT_S: Final = 10.0
"""From the connection to its HELLO: whoever says nothing holds a connection for no longer."""

CONNECTOR_KEEPALIVE_IDLE_S: Final = 30
"""After so much silence the kernel asks whether the other machine is still there. A machine that vanished holds its
streams, or its worker's name, for about a minute; the kernel's own setting is two hours."""

CONNECTOR_KEEPALIVE_INTERVAL_S: Final = 10
"""Between those questions."""

CONNECTOR_KEEPALIVE_PROBES: Final = 3
"""So many of them without an answer end the connection."""

MAX_CONNECTOR_LANES: Final = 64
"""Attempts of one task at a `sink.connector` that may wait for a decision at once, each as a worker."""

MAX_CONNECTOR_NAME_CHARS: Final = 180
"""Of a worker's name. Programs name files by it, with something before and behind, and a file's name has 255 bytes;
what is longer is cut, and ends with a digest."""

CONNECTOR_LINGER_S: Final = 1.0
"""After an ERROR: how long what the other side still sends is read, so that it can read the reason."""

SINK_READ_BYTES: Final = MiB
"""What the SDK's sinks read at a time, from a worker or from a round's file."""

MAX_SINK_CONNECTIONS: Final = 256
"""Connections to one of the SDK's sinks, a thread each; one more is closed at once."""

SINK_LOG_BYTES: Final = 4 * MiB
"""A sink's transaction log is compacted when it is larger: some ten thousand rounds."""

MAX_UNREAD_BYTES: Final = 1024 * MiB
"""(default) Committed messages that wait on the disk until `SinkExtension.read` asks for them; with more,
it votes to roll back."""

# --- Interceptors -----------------------------------------------------------------------------
MAX_SEPARATED_BYTES: Final = 8192
"""(default) `separate`: a payload between two delimiters."""

MAX_LINE_BYTES: Final = 1 * MiB
"""(default) `lines`: one line."""

MAX_INFLATED_BYTES: Final = 256 * MiB
"""(default) What one compressed body or payload may unpack to: zip bombs end here."""

MAX_ZSTD_WINDOW_LOG: Final = 23
"""zstd frames say how much memory their reader must set aside: 2 to this power, 8 MiB, which is what
every reader has to support. Only `--ultra` and `--long` ask for more."""

MAX_LENGTH_DIGITS: Final = 20
"""`textual_length_prefixed`: digits of the length; no length needs more."""

# --- The flow file ----------------------------------------------------------------------------
MAX_FLOW_FILE_BYTES: Final = 1 * MiB
"""A flow file is written by people."""

MAX_FLOW_NODES: Final = 100_000
"""YAML nodes after aliases are expanded: a few lines of aliases can stand for billions."""

MAX_FLOW_DEPTH: Final = 64
"""Nesting of the YAML."""

MAX_SECRET_BYTES: Final = 64 * KiB
"""A file that `${file:...}` refers to: keys and tokens are small."""

MAX_COMPONENTS: Final = 1000
"""Components of one flow."""

MAX_PROBLEMS: Final = 200
"""Mistakes reported for one file; the rest is counted."""

MAX_PLACES: Final = 4096
"""Places of one piece of a flow (see `flow.plan`): each is a case in the expressions that Spark compiles."""

# --- Spark --------------------------------------------------------------------------------------
SPARK_ROWS: Final = 10_000
"""Rows of an Arrow batch on its way into or out of Spark: with fewer, each costs more."""

SPARK_BATCH_BYTES: Final = 16 * MiB
"""Bytes of such a batch, where messages are large: Spark keeps a few in memory for every task."""

SPARK_KEPT_READERS: Final = 64
"""Partitions that one of Spark's workers keeps open between micro-batches."""

SPARK_COMMIT_WAIT_S: Final = 120.0
"""How long a write to a topic waits for another batch write to the same one to be appended."""

SPARK_STAGED_S: Final = 7 * 86_400.0
"""What a batch write has staged and left behind when it died is removed after this time."""

SPARK_TASK_FAILURES: Final = 4
"""Tries of a task before its query fails: a Python worker may be killed for want of memory."""

# --- The supervisor ---------------------------------------------------------------------------
RESTART_MIN_S: Final = 0.1
RESTART_MAX_S: Final = 5.0
"""Back-off between restarts of an edge process; it starts over after a minute of health."""

RESTART_HEALTHY_S: Final = 60.0
"""A process that was ready this long is healthy: its next restart waits RESTART_MIN_S again."""

STATS_TIMEOUT_S: Final = 2.0
"""How long an edge process may take to answer with its counters; then the last known ones count."""

STATS_INTERVAL_S: Final = 2.0
"""Counters are fetched this often, so that the death of a process loses little of them."""

MAINTAIN_INTERVAL_S: Final = 5.0
"""How often the keeper looks for segments to re-pack or to delete."""

LOG_FILE_BYTES: Final = 16 * MiB
"""The file that log lines go to while a terminal shows a flow; past it they go to a new one, and one is kept."""

CONTROL_FRAME_BYTES: Final = 64 * MiB
"""A frame between Penstock's own processes."""

# --- The engine -------------------------------------------------------------------------------
DECISIONS_BYTES: Final = 16 * MiB
"""A decision log past this is replaced by what still counts: bounds recovery to a moment."""

BATCH_ROWS: Final = 500_000
"""(default) Messages in one micro-batch: bounds what a crash repeats, and its exceptions."""

BATCH_BYTES: Final = 256 * MiB
"""(default) Payload bytes in one micro-batch."""

FORGET_INTERVAL_S: Final = 60.0
"""How often receipts are removed whose messages retention has taken."""

TRIM_INTERVAL_S: Final = 10.0
"""How often parks and cuts are cut back to what has not been read: each time may cost a sync."""

DRAIN_ROWS: Final = 50_000
"""Messages taken from a park at a time, so that a sink that fails again has little to repeat."""

MAX_DRAINS: Final = 16
"""Sinks that are brought back at a time: each is a thread, which mostly waits for its destination."""

ONCE_TRIES: Final = 10
"""With `--once`, tries in a row that a held sink gets before the rest is left in its park: half a minute, by the
usual pauses. A query that dies gets as many, and the process of the engine."""

LATE_STEP_S: Final = 1.0
"""How often messages in a park are looked at that may have waited too long (a tenth of a shorter `timeout_s`): each
time costs a transaction, if there are any."""

STATE_BUCKETS: Final = 16
"""Parts into which a link that keeps state in Python has it cut: each is a call, and is written as a whole
when anything in it changes. It is part of the state's format."""

HELD_MESSAGES: Final = 10_000
"""Messages that a throttler holds back in one part of its state; more are throttled."""

WINDOW_MESSAGES: Final = 100_000
WINDOW_BYTES: Final = 16 * MiB
"""A window that has so much ends: its messages are kept in memory, and become one event."""

JOB_TRIES: Final = 3
"""Runs of a micro-batch that fails on its messages, before they are searched for: it may have been a whim."""

REFUSED_TRIES: Final = 3
"""Times in a row that a sink which answers refuses the same, before the message is searched for that it may be
about: it may have been a whim, or the sink's own trouble."""

REFUSED_TRIALS: Final = 8
"""Messages behind a suspect that are tried without being delivered, each twice as far away: if the sink takes none of
them either, the suspect is not to blame."""

REFUSED_ALONE: Final = 100
"""Tries of a message that is refused, where nobody can know whether the sink takes others: some minutes, in which a
full disk behind the sink may be emptied. Then it is given up: it would wait for ever."""

POISONED_SINGLY: Final = 16
"""Messages on which a link fails that are searched for one by one in a micro-batch. Each costs up to 40 small
jobs; past it, what still fails of the batch fails as a whole."""

LOST_RANGES: Final = 1000
"""Ranges of messages that cannot be read, of one micro-batch: what is damaged beyond is told as one. They are
in the decision log and in the receipts, about 200 bytes each."""

CLOCK_STEP_S: Final = 1.0
"""How often a link with state that waits for time to pass is told of it: each time costs two small batches."""

CLOCK_MARGIN_S: Final = 1.0
"""Time is told this much late: a message may have been stamped, and wait for the disk."""

# --- The admin API ----------------------------------------------------------------------------
MAX_ADMIN_BODY_BYTES: Final = 64 * KiB
"""A request's body. The largest there is defines one topic."""

MAX_ADMIN_REQUESTS: Final = 128
"""Requests and connections at a time; more are answered 503."""

MAX_LISTED_MESSAGES: Final = 1000
"""Messages in one answer. Programs read topics with a reader, not through this API."""

MAX_LISTED_BYTES: Final = 8 * MiB
"""Payloads in one answer; it ends after the message that reaches this."""

# --- Sinks ------------------------------------------------------------------------------------
MAX_REASON_CHARS: Final = 1000
"""Why an event failed, as it is kept in a receipt. A destination may answer with a whole page."""

ENCODE_BYTES: Final = 64 * MiB
"""Events that a sink encodes in one go. What it makes of them stays well below Arrow's 2 GiB."""

COPY_BYTES: Final = 1 * MiB
"""Read and written at a time, where a sink copies staged bytes to where they belong."""

PARQUET_ROWS: Final = 131_072
PARQUET_BYTES: Final = 32 * MiB
"""A row group of a Parquet file: kept in memory until it is written, by rows and by bytes."""

SEND_BUFFER_BYTES: Final = 64 * MiB
"""What a task keeps for a sink that sends when it prepares. Past it, it begins to send early."""

SEND_BYTES: Final = 1 * MiB
"""Sent at a time. The time-out of a destination is for this much, and not for all of a batch."""

IDLE_CONNECTIONS: Final = 4
"""Connections to one destination that a process keeps between batches; it runs few tasks at a time."""

REPLY_WINDOW: Final = 1000
"""Messages sent before their answers are waited for: few enough that neither side has to hold back."""

REPLY_BYTES: Final = 64 * KiB
"""One answer to a message, at most. What is longer is no status line."""

HTTP_BATCH_EVENTS: Final = 1000
HTTP_BATCH_BYTES: Final = 1 * MiB
"""Events in one request of an HTTP sink with `batch`: what most servers take, and are quick to answer."""

APPEND_CHUNK_BYTES: Final = 16 * MiB
"""(default) What a topic sink appends at once when it commits, in payloads: it is copied in memory."""

WRITE_AHEAD_BYTES: Final = 4 * MiB
"""Of a file that will be synced: so much is written, and the disk begins with it."""

# --- Tests of flows ---------------------------------------------------------------------------
TEST_CASE_S: Final = 120.0
"""(default) A case that has not settled by then is broken off: a query that dies again and again would go on
for ever."""

TEST_CRASHES: Final = 16
"""A case whose engine was killed so often fails: each crash costs a start of Spark."""

TEST_FILE_BYTES: Final = 16 * MiB
"""A file of inputs, a message a line: it is held in memory, and so is everything that comes out."""
