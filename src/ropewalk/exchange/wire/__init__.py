"""The byte format of messages; each coding of indices is one file, and listed here."""

from __future__ import annotations

from ropewalk.exchange.wire.bitmap import Bitmap
from ropewalk.exchange.wire.blocks16 import Blocks16
from ropewalk.exchange.wire.index_coding import IndexCoding
from ropewalk.exchange.wire.rice import Rice

INDEX_CODINGS: dict[int, IndexCoding] = {1: Blocks16(), 2: Bitmap(), 3: Rice()}
"""Index codings by their number in messages, which never changes; of equally small ones the first is used."""
