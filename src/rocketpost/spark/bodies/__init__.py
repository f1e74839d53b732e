"""Bodies by schema: what ``bodyFormat`` makes of the bytes that a message carries, and of columns.

``codec`` says what a format has to offer, ``json``, ``avro`` and ``protobuf`` are the formats,
``shape`` puts decoded bodies into the rows of a source, and ``packing`` makes bodies of the columns
of a sink.
"""
