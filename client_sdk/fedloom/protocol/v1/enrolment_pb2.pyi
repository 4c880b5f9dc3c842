from fedloom.protocol.v1 import signing_pb2 as _signing_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EnrolRequest(_message.Message):
    __slots__ = ("protocol_versions", "token", "csr_pem")
    PROTOCOL_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    CSR_PEM_FIELD_NUMBER: _ClassVar[int]
    protocol_versions: _containers.RepeatedScalarFieldContainer[int]
    token: str
    csr_pem: bytes
    def __init__(self, protocol_versions: _Optional[_Iterable[int]] = ..., token: _Optional[str] = ..., csr_pem: _Optional[bytes] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("csr_pem",)
    CSR_PEM_FIELD_NUMBER: _ClassVar[int]
    csr_pem: bytes
    def __init__(self, csr_pem: _Optional[bytes] = ...) -> None: ...

class LateRenewRequest(_message.Message):
    __slots__ = ("protocol_versions", "certificate_pem", "csr_pem", "signature")
    PROTOCOL_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_PEM_FIELD_NUMBER: _ClassVar[int]
    CSR_PEM_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    protocol_versions: _containers.RepeatedScalarFieldContainer[int]
    certificate_pem: bytes
    csr_pem: bytes
    signature: bytes
    def __init__(self, protocol_versions: _Optional[_Iterable[int]] = ..., certificate_pem: _Optional[bytes] = ..., csr_pem: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class IssuedCertificate(_message.Message):
    __slots__ = ("federation", "client", "chain_pem", "root_pem", "fleet_port", "signing_key", "signing_chain", "unix_time", "fleet_address")
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    CHAIN_PEM_FIELD_NUMBER: _ClassVar[int]
    ROOT_PEM_FIELD_NUMBER: _ClassVar[int]
    FLEET_PORT_FIELD_NUMBER: _ClassVar[int]
    SIGNING_KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNING_CHAIN_FIELD_NUMBER: _ClassVar[int]
    UNIX_TIME_FIELD_NUMBER: _ClassVar[int]
    FLEET_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    federation: str
    client: str
    chain_pem: bytes
    root_pem: bytes
    fleet_port: int
    signing_key: bytes
    signing_chain: _containers.RepeatedCompositeFieldContainer[_signing_pb2.Endorsement]
    unix_time: float
    fleet_address: str
    def __init__(self, federation: _Optional[str] = ..., client: _Optional[str] = ..., chain_pem: _Optional[bytes] = ..., root_pem: _Optional[bytes] = ..., fleet_port: _Optional[int] = ..., signing_key: _Optional[bytes] = ..., signing_chain: _Optional[_Iterable[_Union[_signing_pb2.Endorsement, _Mapping]]] = ..., unix_time: _Optional[float] = ..., fleet_address: _Optional[str] = ...) -> None: ...
