"""Selection of a body format by its name."""

from __future__ import annotations

from rocketpost.spark.bodies.avro import AvroCodec
from rocketpost.spark.bodies.codec import Codec, TextCodec
from rocketpost.spark.bodies.json import JsonCodec
from rocketpost.spark.bodies.protobuf import ProtobufCodec
from rocketpost.spark.body_options import BodyOptions


def make_codec(options: BodyOptions) -> Codec | None:
    """Return the codec of bodies, or None for plain bytes. Reads the schema file.

    Raises:
        ConfigError: The file is missing, or has no such schema.
    """
    match options.body_format:
        case "string":
            return TextCodec()
        case "json":
            return JsonCodec(options.schema_text())
        case "avro":
            return AvroCodec(options.schema_text())
        case "protobuf":
            return ProtobufCodec(options.schema_bytes(), options.body_message)
    return None
