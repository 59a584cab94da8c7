"""The supervisor: starts the processes of a flow, restarts them, stops them in order."""
