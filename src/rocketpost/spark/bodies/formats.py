"""The formats of bodies by their names."""

from __future__ import annotations

from rocketpost.spark.bodies.avro import AvroCodec
from rocketpost.spark.bodies.codec import Codec, TextCodec
from rocketpost.spark.bodies.json import JsonCodec
from rocketpost.spark.bodies.protobuf import ProtobufCodec
from rocketpost.spark.body_options import BodyOptions


def codec_of(options: BodyOptions) -> Codec | None:
    """Return what bodies are, None for bytes as they are. Reads the file of the schema.

    Raises:
        ConfigError: There is no such file, or no such schema in it.
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
