from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Signature(_message.Message):
    __slots__ = ("key", "signature", "chain")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    signature: bytes
    chain: _containers.RepeatedCompositeFieldContainer[Endorsement]
    def __init__(self, key: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., chain: _Optional[_Iterable[_Union[Endorsement, _Mapping]]] = ...) -> None: ...

class Endorsement(_message.Message):
    __slots__ = ("by", "key", "signature")
    BY_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    by: bytes
    key: bytes
    signature: bytes
    def __init__(self, by: _Optional[bytes] = ..., key: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...
