"""Links with state, on Spark's state store: each is the head of a streaming query."""
