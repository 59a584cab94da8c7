"""The engine: the process that runs a flow's pipeline on Spark."""
