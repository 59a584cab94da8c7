"""Flows: the graph that a flow file describes, and what can be said of it before it runs."""
