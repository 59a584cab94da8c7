"""The command line: one module a command; `main.py` puts them together."""
