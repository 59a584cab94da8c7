"""For tests of flows, yours and ours: run a flow on a real Spark, set its clock, make its parts fail.

    from penstock.testing import Clock, FlowRunner, Input, faults

`FlowRunner` runs a flow from inputs to outputs and receipts; `faults` make components fail, time out, crash or
slow down; `Clock` is the time that messages and held-back sinks go by. For pytest, `penstock.testing.plugin` has
the fixture `flow_runner` and collects case files (`*.test.yaml`), as `penstock test` does.
"""

from penstock.testing import faults
from penstock.testing.clock import Clock
from penstock.testing.faults import Fault, Match
from penstock.testing.messages import Input, Outcome, Output, read_topic
from penstock.testing.runner import FlowRunner

__all__ = [
    "Clock",
    "Fault",
    "FlowRunner",
    "Input",
    "Match",
    "Outcome",
    "Output",
    "faults",
    "read_topic",
]
