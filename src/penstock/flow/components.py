"""All components: importing their modules makes them declare themselves."""

from __future__ import annotations

import importlib

from penstock.config.registry import REGISTRY, Registry

_MODULES = (
    "penstock.codecs.options",
    "penstock.interceptors.options",
    "penstock.links.pacing",
    "penstock.links.payload",
    "penstock.links.query",
    "penstock.links.routing",
    "penstock.links.stateful",
    "penstock.peers.connector",
    "penstock.peers.file",
    "penstock.peers.http",
    "penstock.peers.kafka",
    "penstock.peers.postgres",
    "penstock.peers.redis",
    "penstock.peers.relay",
    "penstock.peers.reply",
    "penstock.peers.tcp",
    "penstock.peers.topic",
    "penstock.peers.udp",
    "penstock.peers.unix",
    "penstock.peers.ws",
)


def registry() -> Registry:
    """Every component that Penstock itself brings, and those of plugins imported so far."""
    for module in _MODULES:
        importlib.import_module(module)
    return REGISTRY
