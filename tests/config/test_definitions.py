"""Topics and workflows inside a flow file."""

from __future__ import annotations

from tests.config.files import TINY, flow_of, only_problem

FULFIL = """
workflows:
  fulfil:
    trigger: {topic: orders, types: ["order.*"]}
    max_parallel: 50
    stages:
      reserve: {outputs: {stock: {topic: stock}}}
      charge:  {dependencies: [root_event], outputs: {receipt: {topic: receipts}}}
      ship:    {after: [charge], dependencies: [reserve.stock, charge.receipt]}
"""


def test_a_workflow_is_read_and_known_not_to_run_yet():
    flow = flow_of(TINY + FULFIL)
    fulfil = flow.workflows["fulfil"]
    assert fulfil.trigger.types == ["order.*"]
    assert list(fulfil.stages) == ["reserve", "charge", "ship"]
    assert fulfil.stages["ship"].dependencies == ["reserve.stock", "charge.receipt"]
    assert "workflow fulfil" in [gap.what for gap in flow.missing()]


def test_a_stage_that_is_not_there_is_named():
    problem = only_problem(TINY + FULFIL.replace("[charge]", "[«chrage]"))
    assert problem.message == "the workflow `fulfil` has no stage `chrage`"
    assert problem.hint == "did you mean `charge`?"


def test_an_output_that_nobody_gives_is_named():
    problem = only_problem(TINY + FULFIL.replace("[reserve.stock", "[«reserve.stok"))
    assert problem.message == "the workflow `fulfil`: no stage gives `reserve.stok`"
    assert problem.hint == "did you mean `reserve.stock`?"


def test_stages_that_wait_for_each_other_are_refused():
    text = FULFIL.replace("reserve: {", "«reserve: {after: [ship], ")
    problem = only_problem(TINY + text)
    assert "stages wait for each other: reserve → ship → reserve" in problem.message


def test_a_misspelt_option_of_a_stage_is_placed():
    problem = only_problem(TINY + FULFIL.replace("{after", "{«afte"))
    assert problem.hint == "did you mean `after`?"


def test_a_bad_topic_name_is_placed():
    assert "topic name 'A'" in only_problem(TINY + "topics: {«A: {}}\n").message
    assert "topic name 'B'" in only_problem(TINY + FULFIL.replace("orders,", "«B,")).message
