"""Appending to partitions that other processes own, over unix sockets in the data directory."""
