"""Codecs: from payloads to values and back."""
