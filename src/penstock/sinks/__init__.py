"""Sinks: where messages leave a flow. `interface.py` is the contract that each of them keeps."""
