"""Makes ``descriptor.py`` from ``rocketmq_v2.proto``: ``python -m rocketpost.proxy.wire.compile``.

Needs ``grpcio-tools``, which only developers have; users get the committed result.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("rocketmq_v2.proto")
RESULT: Final = Path(__file__).with_name("descriptor.py")
_LINE_DIGITS: Final = 88
_HEAD: Final = '''"""The messages of ``rocketmq_v2.proto``, compiled by ``proxy.wire.compile``."""

from typing import Final

SERIALIZED: Final = bytes.fromhex(
'''


def compile_proto() -> bytes:
    """Return the compiled form of the proto text: a ``FileDescriptorProto``.

    Raises:
        RuntimeError: The text is wrong; the compiler has printed the reason.
    """
    import grpc_tools
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from grpc_tools import protoc

    known = Path(grpc_tools.__file__).with_name("_proto")
    with tempfile.NamedTemporaryFile(suffix=".binpb") as file:
        options = [f"--proto_path={SOURCE.parent}", f"--proto_path={known}"]
        code = protoc.main(["protoc", *options, f"--descriptor_set_out={file.name}", SOURCE.name])
        if code != 0:
            raise RuntimeError(f"{SOURCE.name} cannot be compiled")
        compiled = FileDescriptorSet.FromString(file.read())
    data: bytes = compiled.file[0].SerializeToString(deterministic=True)
    return data


def render(data: bytes) -> str:
    """Return the text of ``descriptor.py``."""
    digits = data.hex()
    step = _LINE_DIGITS
    lines = [f'    "{digits[at : at + step]}"\n' for at in range(0, len(digits), step)]
    return f"{_HEAD}{''.join(lines)})\n"


if __name__ == "__main__":
    RESULT.write_text(render(compile_proto()))
