"""Results as JUnit XML, which every CI reads."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence

from penstock.testing.suites import CaseResult


def junit_xml(results: Sequence[CaseResult]) -> bytes:
    root = ET.Element("testsuites", _counts(results))
    for file in dict.fromkeys(one.file for one in results):
        own = [one for one in results if one.file == file]
        suite = ET.SubElement(root, "testsuite", {"name": _text(str(file)), **_counts(own)})
        for one in own:
            case = ET.SubElement(
                suite,
                "testcase",
                {
                    "classname": _text(str(file)),
                    "name": _text(one.case.name),
                    "file": _text(str(file)),
                    "line": str(one.case.line),
                    "time": f"{one.seconds:.3f}",
                },
            )
            if one.status != "passed":
                kind = "failure" if one.status == "failed" else "error"
                first = one.report().splitlines()[0]
                found = ET.SubElement(case, kind, {"message": _text(first)})
                found.text = _text(one.report())
    ET.indent(root)
    written: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return written + b"\n"


def _counts(results: Sequence[CaseResult]) -> dict[str, str]:
    return {
        "tests": str(len(results)),
        "failures": str(sum(one.status == "failed" for one in results)),
        "errors": str(sum(one.status == "error" for one in results)),
        "time": f"{sum(one.seconds for one in results):.3f}",
    }


def _text(text: str) -> str:
    """XML has no way to write most control characters."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
