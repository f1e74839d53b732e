"""Bodies by schema: what ``bodyFormat`` makes of the bytes that a message carries.

``codec`` says what a format has to offer, ``json``, ``avro`` and ``protobuf`` are the formats, and
``shape`` puts decoded bodies into the rows of a source.
"""
