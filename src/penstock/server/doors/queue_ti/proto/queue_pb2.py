"""The messages of queue.proto, from ``queue.binpb``, which protoc makes of it.

They are in a descriptor pool of their own. The module that protoc would generate registers its
types for the whole process, and queue-ti's client, which a program may import too, registers the
same names.
"""

from __future__ import annotations

from importlib.resources import files

from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_pool = DescriptorPool()
_pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
for _file in FileDescriptorSet.FromString(
    files(__package__).joinpath("queue.binpb").read_bytes()
).file:
    DESCRIPTOR = _pool.AddSerializedFile(_file.SerializeToString())
    globals().update(
        {name: GetMessageClass(kind) for name, kind in DESCRIPTOR.message_types_by_name.items()}
    )
