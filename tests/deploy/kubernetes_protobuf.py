"""Reads secrets, which `kubectl create` sends as protobuf."""

import base64

PREFIX = b"k8s\0"


def _number(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return value, at


def _fields(data):
    """Returns the values of each field with bytes, by the field's number. Numbers are left out."""
    found, at = {}, 0
    while at < len(data):
        key, at = _number(data, at)
        value, at = _number(data, at)
        if key % 8 == 2:
            found.setdefault(key >> 3, []).append(data[at:at + value])
            at += value
    return found


def _text(fields, number):
    return fields.get(number, [b""])[0].decode()


def read(data):
    """Returns the secret as its JSON would be."""
    envelope = _fields(data.removeprefix(PREFIX))
    kind, body = _fields(envelope[1][0]), _fields(envelope[2][0])
    assert _text(kind, 2) == "Secret", f"protobuf of {kind}"
    entries = [_fields(one) for one in body.get(2, [])]
    return {"apiVersion": _text(kind, 1), "kind": "Secret", "metadata": {"name": _text(_fields(body[1][0]), 1)},
            "data": {_text(one, 1): base64.b64encode(one[2][0]).decode() for one in entries},
            "type": _text(body, 3) or "Opaque"}
