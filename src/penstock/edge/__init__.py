"""The edge process: it owns the listening sockets and writes what comes in to topics."""
