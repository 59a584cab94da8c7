"""The admin API: health, readiness, metrics and topics of a running flow, over HTTP."""
