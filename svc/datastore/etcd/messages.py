"""The messages and stubs of the etcd3 package, under any protobuf that is still supported.

The generated modules of etcd3 0.12 were made for protobuf 3 and do not import under a later one. What they describe is
inside them, serialized; so message classes are made anew from that, and stand in for the generated modules before etcd3
itself is imported. A later etcd3 with modules of today holds no such descriptor, and is imported as it is.

etcd3's client class is not used. Its transactions do not tell the revision that they made, its watches start again neither
after a broken connection nor after a compaction, and it speaks to one server. All of that is in this package, over the
stubs and messages that etcd3 generated.
"""

import ast
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message_factory import GetMessageClass

_GENERATED = ("kv_pb2", "auth_pb2", "rpc_pb2")  # each after those that it needs
_DESCRIPTOR = re.compile(r"serialized_pb=_b\(('.*')\)")


def _stand_in(name: str, descriptor: bytes, pool: DescriptorPool) -> ModuleType:
    """What a module generated today would hold."""
    file = pool.AddSerializedFile(descriptor)
    members: dict[str, Any] = {each.name: GetMessageClass(each) for each in file.message_types_by_name.values()}
    for enum in file.enum_types_by_name.values():
        members |= {enum.name: EnumTypeWrapper(enum), **{value.name: value.number for value in enum.values}}
    module = ModuleType(name)
    vars(module).update(members)
    return module


def _prepare() -> None:
    """ImportError when etcd3 is not installed."""
    spec = importlib.util.find_spec("etcd3")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'etcd3'", name="etcd3")
    pool = DescriptorPool()  # of our own: file names such as kv.proto are not unique
    for name in _GENERATED:
        found = _DESCRIPTOR.search(Path(spec.origin).with_name("etcdrpc").joinpath(f"{name}.py").read_text())
        if found is not None:
            module = f"etcd3.etcdrpc.{name}"
            sys.modules[module] = _stand_in(module, ast.literal_eval(found[1]).encode("latin1"), pool)


_prepare()

from etcd3 import etcdrpc  # noqa: E402  only now

KVStub = etcdrpc.KVStub
Compare = etcdrpc.Compare
DeleteRangeRequest = etcdrpc.DeleteRangeRequest
PutRequest = etcdrpc.PutRequest
RangeRequest = etcdrpc.RangeRequest
RequestOp = etcdrpc.RequestOp
TxnRequest = etcdrpc.TxnRequest
WatchCreateRequest = etcdrpc.WatchCreateRequest
WatchRequest = etcdrpc.WatchRequest
WatchResponse = etcdrpc.WatchResponse

Message = Any  # etcd3 has no types
