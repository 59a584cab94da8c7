"""`receiver.http`: HTTP/1.1, answered once what was posted is durable.

The way of a request, a module a step:

    connection  bytes of a socket, cut into heads and bodies; answers go out in the order of requests
    head        what the bytes of a head say (by httptools)      chunks  a chunked body
    request     what the receiver makes of it: a message to take, a receipt to find, or an error
    body        a body cut into messages: whole, by lines, length-prefixed, or CloudEvents
    posting     from durable to answered, and for who waits, to settled
    answer      the bytes of an answer
    receiver    what all connections share

What a head means is a function of its bytes and of the receiver's options, never of how they came: so a
head that was seen before need not be read again.
"""

from penstock.edge.http.receiver import HttpReceiver

__all__ = ["HttpReceiver"]
