"""`/topics`: list, create, describe, delete, and look at messages.

Operations are plain functions: the framework runs them in threads, since the log's calls block.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import JSONResponse

from penstock.admin.models import (
    NAME_PATTERN,
    NAMESPACE_PATTERN,
    DamagedTopic,
    DeleteQuery,
    ListQuery,
    MessageList,
    MessageQuery,
    NewTopic,
    TopicDescription,
    TopicList,
    TopicSummary,
)
from penstock.admin.problems import Refused, documented
from penstock.admin.rows import rows
from penstock.limits import MAX_LISTED_BYTES, MAX_NAME_CHARS
from penstock.log.interface import Log
from penstock.log.names import TopicName
from penstock.log.survey import survey

NamespacePart = Annotated[
    str, Path(min_length=1, max_length=MAX_NAME_CHARS, pattern=NAMESPACE_PATTERN)
]
TopicPart = Annotated[str, Path(min_length=1, max_length=MAX_NAME_CHARS, pattern=NAME_PATTERN)]


def router(log: Log) -> APIRouter:
    topics = APIRouter(tags=["topics"])

    @topics.get("/topics", responses=documented(422))
    def list_topics(query: Annotated[ListQuery, Query()]) -> TopicList:
        """Every topic, or those of one namespace."""
        found = survey(log, query.namespace)
        return TopicList(
            topics=[TopicSummary.of(info) for info in found.topics],
            damaged=[
                DamagedTopic(namespace=name.namespace, topic=name.topic, reason=reason)
                for name, reason in found.damaged
            ],
        )

    @topics.post(
        "/topics",
        status_code=201,
        responses={
            200: {"model": TopicDescription, "description": "It was there already, the same."},
            **documented(409, 413, 422, 507),
        },
    )
    def create_topic(topic: NewTopic, response: Response) -> TopicDescription:
        """Make a topic, or change the settings of one, which keeps those that are not given.

        Partitions may only grow, and `ids` never changes. What runs goes by new limits of a segment when
        it is started again, by the rest at once.
        """
        name = TopicName(topic.namespace, topic.topic)
        present = log.config(name) if name in log.topics(name.namespace) else None
        if not log.create(name, topic.to_config(present)):
            response.status_code = 200
        else:
            response.headers["Location"] = f"/topics/{name.namespace}/{name.topic}"
        return TopicDescription.of(log.describe(name))

    @topics.get("/topics/{namespace}/{topic}", responses=documented(404, 422))
    def describe_topic(namespace: NamespacePart, topic: TopicPart) -> TopicDescription:
        return TopicDescription.of(log.describe(TopicName(namespace, topic)))

    @topics.delete(
        "/topics/{namespace}/{topic}",
        status_code=204,
        response_class=Response,  # no content, and no content type either
        responses=documented(404, 409, 422),
    )
    def delete_topic(
        namespace: NamespacePart, topic: TopicPart, query: Annotated[DeleteQuery, Query()]
    ) -> None:
        """Remove a topic and its messages. Refused while anyone writes to it."""
        name = TopicName(namespace, topic)
        if query.confirm not in (f"{namespace}/{topic}", str(name)):
            raise Refused(409, f"to delete this topic, confirm it by its name: ?confirm={name}")
        log.delete(name)

    @topics.get(
        "/topics/{namespace}/{topic}/messages",
        response_model=MessageList,
        responses=documented(404, 422),
    )
    def list_messages(
        namespace: NamespacePart, topic: TopicPart, query: Annotated[MessageQuery, Query()]
    ) -> JSONResponse:
        """Messages of one partition from an offset on, as many as one answer may hold."""
        return JSONResponse(_messages(log, TopicName(namespace, topic), query))

    return topics


def _messages(log: Log, name: TopicName, query: MessageQuery) -> dict[str, object]:
    reader = log.reader(name, query.partition)
    try:
        found = []
        size_bytes = 0
        end = reader.end()
        for batch in reader.read(query.offset, end=end, max_rows=query.limit):
            for row in rows(batch, str(name), query.partition):
                found.append(row)
                size_bytes += len(row["payload"])
                if len(found) == query.limit or size_bytes >= MAX_LISTED_BYTES:
                    break
            else:
                continue
            break
        # Nothing found below the end means that it is all corrupt or gone: go on behind it.
        next_offset = found[-1]["offset"] + 1 if found else max(query.offset, end)
        return {
            "messages": found,
            "next_offset": next_offset,
            "end": end,
            "corrupt": [str(error) for error in reader.corrupt],
        }
    finally:
        reader.close()
