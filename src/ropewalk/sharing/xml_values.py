"""Values as XML-RPC carries them, for managers with serializer="xmlrpclib": a tuple arrives as a list, say."""

from __future__ import annotations

import xmlrpc.client
from typing import Any


def through_xml(value: Any) -> Any:
    """What arrives of a value that is sent by XML-RPC.

    Raises:
        TypeError: XML-RPC cannot carry it.
    """
    (arrived,), _ = xmlrpc.client.loads(xmlrpc.client.dumps((value,), allow_none=True))
    return arrived
