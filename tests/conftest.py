"""For all tests."""

from __future__ import annotations

from hypothesis import settings

# A test says what happens, never how fast: this machine may be busy.
settings.register_profile("penstock", deadline=None)
settings.load_profile("penstock")
