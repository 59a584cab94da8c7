"""Links: what happens to messages between receivers and sinks. Each declares its options."""
