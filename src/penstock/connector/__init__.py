"""The connector protocol without any I/O: bytes in, events out. Sockets, clocks and files are elsewhere.

    frames.py       the frames of the wire, one by one         two_phase.py   the messages on stream 0
    columns.py      many MESSAGE frames at once                decoder.py     a stream of bytes, cut up
    states.py       who may say what when: all tables          machine.py     runs the tables
    sending.py      the source role: the extension's side      receiving.py   the source role: ours
    working.py      the sink role: our side, the worker        sinking.py     the sink role: theirs
    worker.py       settles, then does rounds                  participant.py stores, logs, votes, answers
    ledger.py       what a sink knows of one worker            diagrams.py    the tables as pictures
    connection.py   what the four connections share

The rules that everything here keeps:

- A connection object is given the bytes that arrived and gives back events; it is told what to say and
  gives back bytes. Both go through the same tables, so no side can say what the other must refuse.
- Any way of cutting the bytes gives the same events. What came before a broken frame is given first.
- After an ERROR, sent or received, or a RESTART, a connection is over: what still arrives is dropped.
- Nothing grows without a limit: a frame's size is checked before anything is kept for it.
"""
