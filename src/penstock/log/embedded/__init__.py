"""The embedded log: topics as files in the data directory. One machine, no server.

# On disk

    DATA/topics/NAMESPACE/TOPIC/topic.json            the topic's configuration
    DATA/topics/NAMESPACE/TOPIC/0000/                 partition 0
        00000000000000000000.seg                      a segment, named for its first offset
        00000000000000000000.idx                      its sparse index, once re-packed (a hint)
        00000000000000000000.prd                      all that is known of numbers at its end
        tail                                          how far readers may read
        lock                                          who writes

A **segment** is a 64-byte header and then frames, each beginning on a multiple of 64 bytes:

    segment header   magic "PSTKSEG1", u32 version, u32 -, u64 first offset, i64 created (us), u64 seed,
                     16 x -, u64 check
    frame header     u32 magic "PFRM", u8 codec, 3 x -, u32 body bytes, u32 messages, u64 first offset,
                     i64 append time (us), i64 greatest message time (us), u64 body check, 8 x -,
                     u64 check
    frame body       padded with zeros to a multiple of 64

All integers are little-endian. A check is XXH3-64: of the 56 bytes before it (headers), or of the
padded body, seeded with a random number of the topic's, so that no payload can pass for a frame when
a damaged stretch is searched for the next one. The header has a check of its own so that a damaged body does not hide the length, and
with it the way to the next frame. Codecs:

    1  lean   what the edge appends: the buffers of an Arrow batch without its metadata, with streams
              and meta run-length encoded (frame.py has the layout). Cheap for a batch of one.
    2  arrow  what re-packing leaves, and rows that were appended as such: one Arrow IPC stream (schema,
              dictionaries, one record batch of about ten thousand rows), when re-packed optionally
              compressed with lz4 or zstd. Any Arrow reader opens the body as it is. The schema's
              metadata says which rows were appended as rows, and the last number of each of their
              producers (arrow.py): their own streams and numbers are data, and not learnt.

`tail` is 64 bytes, mapped by writer and readers: the active segment, the byte up to which it is
durable, the end offset, the time of the last append, and a check. The writer stores it after every
fdatasync; readers that catch it half stored look again.

# Limits

A frame has at most MAX_FRAME_BYTES and a segment at most SEGMENT_FRAMES frames; a segment is sealed
once it passes its size, or its age, which is that of its first frame: by whoever has the partition, or
by the keeper if nobody has. See `penstock.limits`.

# Writing

One process writes a partition; an flock on `lock` makes sure, and the file says who. A commit writes
the frames of all who wait with one `pwritev`, then one `fdatasync`. Only then are they told and `tail`
moved. While commits are small the file is zero-filled ahead, since a commit that need not record a
new size costs half; sealing cuts what is left. If the disk refuses, the file is cut back to its durable
end, everyone who waited is told that nothing was stored, and the disk is tried again a little later.

# Recovery

Taking the lock runs recovery. Sealed segments are not read, and of the sidecars only the newest. The last one is walked from its start:

- Up to the byte that `tail` calls durable, a frame that fails its check is *corrupt*: it is noted and
  kept, and the walk goes on at the next 64-byte boundary that holds a valid frame.
- From there on a frame that fails is a *torn tail*: nobody was told that it is durable, and the file is
  cut there. Whole frames found there are kept: they were written, if not acknowledged.
- If `tail` itself is missing or damaged, a failing frame with a valid one behind it is corrupt, and
  one without is torn.

What remains is synced before anyone may read it. Killing any process at any moment leaves one of these
states. Power loss is another matter: the log asks for durability with fdatasync, and what the disk or the
host underneath makes of that is theirs.

# Re-packing and retention

`keeper.py` rewrites a sealed segment of lean or small frames as Arrow frames of a good size into a new file
and renames it over the old one; readers that have the old one mapped keep it. Retention unlinks whole
sealed segments, oldest first (where a file `trim` says how far the only reader has come, those below that,
and no others), but keeps the newest sidecars, which have the last number of every stream. Neither touches
the active segment, so both run beside the writer, in another process.
"""

from penstock.log.embedded.engine import EmbeddedLog

__all__ = ["EmbeddedLog"]
