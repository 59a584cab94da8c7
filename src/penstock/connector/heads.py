"""The head of a MESSAGE frame as a NumPy type: many of them at once, without Arrow."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.connector.frames import LENGTH_BYTES, MESSAGE_HEAD

HEAD_BYTES: Final = MESSAGE_HEAD.size
HEAD: Final = np.dtype(
    [
        ("length", ">u4"),
        ("type", "u1"),
        ("stream_id", ">u8"),
        ("message_id", ">u8"),
        ("event_time", ">i8"),
        ("key_bytes", ">u2"),
    ]
)
assert HEAD.itemsize == HEAD_BYTES

LEAST_LENGTH: Final = HEAD_BYTES - LENGTH_BYTES
"""What a frame's length says when key and payload are empty."""
