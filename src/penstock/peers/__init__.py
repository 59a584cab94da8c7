"""Peers: one module a type. A receiver or a sink is a peer used one way."""
