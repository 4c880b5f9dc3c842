"""Serialized `tf.train.Example` messages, read without TensorFlow.

Source: `tensorflow/core/example/example.proto` and `feature.proto`: an Example has `features` = 1,
a message with a map `feature` = 1 of names to one of `bytes_list` = 1, `float_list` = 2 and
`int64_list` = 3, each a message with a repeated `value` = 1.
"""

from functools import cache
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

_Field = descriptor_pb2.FieldDescriptorProto
_Message = descriptor_pb2.DescriptorProto
_LISTS = {
    "bytes_list": ("BytesList", _Field.TYPE_BYTES),
    "float_list": ("FloatList", _Field.TYPE_FLOAT),
    "int64_list": ("Int64List", _Field.TYPE_INT64),
}


def features(serialized: bytes) -> dict[str, Any]:
    """The features of an example by name.

    Returns:
        Of a feature float32 [n], int64 [n], or its bytes: the one text, or a list of texts.

    Raises:
        ValueError: it is no such message.
    """
    example = _example_class()()
    try:
        example.ParseFromString(serialized)
    except DecodeError as error:
        raise ValueError(f"no tf.train.Example ({error})") from error
    return {name: _value(feature) for name, feature in example.features.feature.items()}


def _value(feature: Any) -> Any:
    kind = feature.WhichOneof("kind")
    if kind is None:
        return []
    values = getattr(feature, kind).value
    if kind == "bytes_list":
        return values[0] if len(values) == 1 else list(values)
    return np.array(values, np.float32 if kind == "float_list" else np.int64)


@cache
def _example_class() -> Any:
    """The message class, in a pool of its own: a program may have TensorFlow's too."""
    feature = _Message(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, (kind, _)) in enumerate(_LISTS.items(), 1):
        feature.field.add(
            name=name, number=number, type=_Field.TYPE_MESSAGE, type_name=f".tensorflow.{kind}",
            label=_Field.LABEL_OPTIONAL, oneof_index=0,
        )  # fmt: skip
    entry = _Message(name="FeatureEntry", field=[_text("key", 1), _message("value", 2, "Feature")])
    entry.options.map_entry = True
    found = _message("feature", 1, "Features.FeatureEntry")
    found.label = _Field.LABEL_REPEATED
    file = descriptor_pb2.FileDescriptorProto(
        name="tensorflow/core/example/example.proto", package="tensorflow", syntax="proto3"
    )
    file.message_type.extend(_list(name, kind) for name, kind in _LISTS.values())
    file.message_type.extend(
        [
            feature,
            _Message(name="Features", nested_type=[entry], field=[found]),
            _Message(name="Example", field=[_message("features", 1, "Features")]),
        ]
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


def _list(name: str, kind: "descriptor_pb2.FieldDescriptorProto.Type.ValueType") -> Any:
    return _Message(
        name=name, field=[_Field(name="value", number=1, type=kind, label=_Field.LABEL_REPEATED)]
    )


def _text(name: str, number: int) -> Any:
    return _Field(name=name, number=number, type=_Field.TYPE_STRING, label=_Field.LABEL_OPTIONAL)


def _message(name: str, number: int, kind: str) -> Any:
    return _Field(
        name=name, number=number, type=_Field.TYPE_MESSAGE, type_name=f".tensorflow.{kind}",
        label=_Field.LABEL_OPTIONAL,
    )  # fmt: skip
