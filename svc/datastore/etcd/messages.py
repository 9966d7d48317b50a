"""Messages and stubs of the etcd3 package, for every supported version of protobuf.

The generated modules of etcd3 0.12 are for protobuf 3 and cannot be imported with later versions. They contain serialized
descriptors. This module builds message classes from the descriptors, and registers replacements for the generated modules
before it imports etcd3. A later etcd3 without such descriptors is imported unchanged.

svc does not use the client class of etcd3: its transactions do not return their revision, its watches end with the connection
or at a compaction, and it connects to one server only.
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

import svc.datastore.etcd.sync_grpc  # noqa: F401  etcd3 imports gRPC as well

_GENERATED = ("kv_pb2", "auth_pb2", "rpc_pb2")  # in the order of their imports
_DESCRIPTOR = re.compile(r"serialized_pb=_b\(('.*')\)")


def _stand_in(name: str, descriptor: bytes, pool: DescriptorPool) -> ModuleType:
    """Build a module with the message classes and enums of a descriptor."""
    file = pool.AddSerializedFile(descriptor)
    members: dict[str, Any] = {each.name: GetMessageClass(each) for each in file.message_types_by_name.values()}
    for enum in file.enum_types_by_name.values():
        members |= {enum.name: EnumTypeWrapper(enum), **{value.name: value.number for value in enum.values}}
    module = ModuleType(name)
    vars(module).update(members)
    return module


def _prepare() -> None:
    """Register the replacements. Raise ModuleNotFoundError if etcd3 is not installed."""
    spec = importlib.util.find_spec("etcd3")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'etcd3'", name="etcd3")
    pool = DescriptorPool()  # separate, because file names such as kv.proto are not unique in the default pool
    for name in _GENERATED:
        found = _DESCRIPTOR.search(Path(spec.origin).with_name("etcdrpc").joinpath(f"{name}.py").read_text())
        if found is not None:
            module = f"etcd3.etcdrpc.{name}"
            sys.modules[module] = _stand_in(module, ast.literal_eval(found[1]).encode("latin1"), pool)


def _import_messages() -> Any:
    """Import the messages alone: the package itself imports its client, which takes as long as the rest."""
    _prepare()
    spec = importlib.util.find_spec("etcd3")
    assert spec is not None  # see `_prepare`
    package = sys.modules.get("etcd3")
    if package is None:
        sys.modules["etcd3"] = alone = ModuleType("etcd3")
        alone.__path__ = list(spec.submodule_search_locations or ())
    try:
        return importlib.import_module("etcd3.etcdrpc")
    finally:
        if package is None:
            del sys.modules["etcd3"]


rpc: Any = _import_messages()  # etcd3 has no types
Message = Any
