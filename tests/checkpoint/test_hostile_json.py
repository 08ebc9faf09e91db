"""Documents and headers that somebody else has written: read as what they say, or refused as what they are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_preempt.checkpoint import documents
from keras_preempt.checkpoint.documents import FORMAT, decode_document, encode_document
from keras_preempt.checkpoint.dtypes import dtype_of
from keras_preempt.checkpoint.errors import CorruptCheckpoint, UnsupportedFormat, one_line
from keras_preempt.checkpoint.tensors import parse_header
from keras_preempt.checkpoint.values import elements
from keras_preempt.process import json_fields
from tests.checkpoint.fuzz_campaign import check_refusal
from tests.checkpoint.fuzz_mutations import NUMBERS, TEXTS
from tests.checkpoint.fuzz_targets import seal_text

odd = st.recursive(
    st.none() | st.booleans() | st.sampled_from(NUMBERS) | st.sampled_from(TEXTS) | st.text() | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(TEXTS), inner, max_size=3),
    max_leaves=8,
)
small = st.integers(0, 20)
counts = small | st.sampled_from([number for number in NUMBERS if isinstance(number, int)])


def seldom(usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly of the right type, which gets further."""
    return st.integers(0, 19).flatmap(lambda dice: odd if dice == 0 else usual)


def objects(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    whole = st.fixed_dictionaries({name: seldom(value) for name, value in fields.items()})
    return whole.flatmap(
        lambda made: st.sampled_from([made] * 9 + [{k: v for k, v in made.items() if k != next(iter(made))}])
    )


headers = st.dictionaries(
    st.sampled_from(["a", "b", "c", "__metadata__", *TEXTS]),
    objects(
        dtype=st.sampled_from(["F32", "U8", "BOOL", "F8_E4M3", "object"]),
        shape=st.lists(counts, max_size=3) | st.lists(counts, min_size=33, max_size=40),
        data_offsets=st.lists(counts, min_size=1, max_size=3),
    ),
    max_size=4,
)


@given(st.binary() | st.text().map(str.encode) | odd.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_refused_as_a_document(data: bytes) -> None:
    with pytest.raises((CorruptCheckpoint, UnsupportedFormat)) as refused:
        decode_document(data, "file")
    check_refusal(refused.value)


@settings(max_examples=50)
@given(headers, small | st.sampled_from([2**40]))
def test_a_header_of_any_content_is_refused_or_fits_its_file(header: dict[str, Any], size: int) -> None:
    try:
        tensors = parse_header(json.dumps(header).encode(), size, "file")
    except CorruptCheckpoint as error:
        check_refusal(error)
        return
    end = 0
    for tensor in tensors:
        assert tensor.begin == end
        end += elements(tensor.shape) * dtype_of(tensor.dtype).itemsize
    assert end == size
    assert len({tensor.key for tensor in tensors}) == len(tensors) == len(header.keys() - {"__metadata__"})


def header(**tensors: tuple[str, list[int], list[int]]) -> bytes:
    keys = ("dtype", "shape", "data_offsets")
    return json.dumps({key: dict(zip(keys, value, strict=True)) for key, value in tensors.items()}).encode()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (header(a=("F32", [1], [0, 4]), b=("F32", [1], [2, 6])), "overlap"),
        (header(a=("F32", [1], [0, 4]), b=("F32", [1], [0, 4])), "overlap"),
        (header(a=("F32", [1], [0, 4]), b=("F32", [1], [5, 9])), "gap"),
        (header(a=("F32", [1], [4, 8])), "gap"),
        (header(a=("F32", [2], [0, 4])), "4 bytes for a float32"),
        (header(a=("F32", [1], [4, 0])), "-4 bytes"),
        (header(a=("F32", [2**32, 2**32, 2**32], [0, 4])), r"2\*\*62"),
        (header(a=("F32", [2**62, 0], [0, 0]), b=("U8", [4], [0, 4])), r"2\*\*62"),
        (header(a=("U8", [1] * 33, [0, 1])), "32 dimensions"),
        (header(a=("U8", [10**900] * 30, [0, 1])), r"2\*\*62"),
        (header(a=("object", [1], [0, 8])), "unknown element type"),
        (header(a=(["U8"], [4], [0, 4])), "unknown element type"),
        (header(a=("U8", [-4], [0, 4])), "whole numbers"),
        (header(a=("U8", [-2, -2], [0, 4])), "whole numbers"),
        (header(a=("U8", "4", [0, 4])), "whole numbers"),
        (header(a=("U8", [4], [0, 4, 4])), "whole numbers"),
        (header(a=("U8", [5], [0, 5])), "5 bytes in a file with 4"),
        (header(a=("U8", [4], [-4, 0])), "whole numbers"),
        (header(a=("U8", [1], [0, 1])), "1 bytes in a file with 4"),
        (b'{"a":{"shape":[4],"data_offsets":[0,4]}}', "exactly dtype, shape"),
        (b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"code":"print()"}}', "exactly dtype, shape"),
        (header(a=("U8", [True], [0, 1])), "whole numbers"),
        (header(a=("U8", [1.0], [0, 1])), "whole numbers"),
        (b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{}}', "twice"),
        (b'{"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}}', "twice"),
        (b'{"a":{"dtype":"U8","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,4]}}', "digits"),
        (b'{"a":NaN}', "NaN"),
        (b"[" * 100_000, "deep"),
        (b"[" + b"0," * json_fields.MOST_VALUES + b"0]", "values"),
        (b"\xff\xfe{\0}\0", "no readable header"),
        (b"[]", "no object"),
        (b"", "no readable header"),
    ],
)
def test_a_header_that_lies_is_refused_and_says_why(text: bytes, why: str) -> None:
    with pytest.raises(CorruptCheckpoint, match=why) as refused:
        parse_header(text, 4, "file")
    check_refusal(refused.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"format":1,"a":1,"a":1}', "twice"),
        ('{"format":1,"a":{"b":1,"b":1}}', "twice"),
        ('{"format":2,"format":1}', "twice"),
        ('{"format":1,"a":NaN}', "NaN"),
        ('{"format":1,"a":' + "9" * 2000 + "}", "2000 digits"),
        ('{"format":1,"a":' + "[" * 101 + "]" * 101 + "}", "deep"),
        ('{"format":1,"a":' + '{"a":' * 101 + "1" + "}" * 102, "deep"),
        ('{"format":1,"a":"\N{SNOWMAN}"}', "ascii"),
        ('{"format":1,"a":{"$float":"1"}}', "unknown mark"),
        ('{"format":1,"a":{"$object":[]}}', "unknown mark"),
        ('{"format":1,"a":{"$__reduce__":["os.system","true"]}}', "unknown mark"),
        ('{"format":1,"a":{"$code":"print()"}}', "unknown mark"),
        ('{"format":1,"a":{"$float":"1e5"}}', "unknown mark"),
        ('{"a":1}', "format version"),
        ('{"format":0}', "format version"),
        ('{"format":"1"}', "format version"),
        ('{"$object":{"format":1}}', "format version"),
        ('{"format":1e0}', "format version"),
        ('{"format":true}', "format version"),
        ('{"format":' + "9" * 900 + "}", "format version"),
        ('{"format":[' + "1," * 5000 + "1]}", "format version"),
    ],
)
def test_a_document_with_a_right_sum_that_no_version_has_written_is_refused(text: str, why: str) -> None:
    with pytest.raises(CorruptCheckpoint, match=why) as refused:
        decode_document(seal_text(text), "file")
    check_refusal(refused.value)


def test_what_is_written_can_be_read_back_or_is_not_written() -> None:
    """The limits of reading are told to whoever writes, not found at a restart."""
    deep: Any = 1
    for _ in range(48):
        deep = {"$a": deep}
    body = {"format": FORMAT, "value": [deep, 10**998, -(10**998), list(range(10_000))]}
    assert decode_document(encode_document(body), "file") == body
    for value, why in (
        ({"a": {"a": deep}}, "deep"),
        ([[deep]], "deep"),
        (10**999, "digits"),
        (-(10**999), "digits"),
    ):
        with pytest.raises(TypeError, match=rf"Expected .*{why}.* Received: "):
            encode_document({"format": FORMAT, "value": value})
        with pytest.raises(TypeError, match=why):
            documents.as_read({"value": value})


@pytest.mark.parametrize(
    ("module", "limit", "fits", "why"),
    [
        (json_fields, "MOST_VALUES", [0] * 990, r".* values\. Received: more than 1000 values"),
        (documents, "LARGEST", "x" * 900, r"1000 bytes .* Received: 1\d\d\d bytes"),
    ],
)
def test_a_document_too_large_to_be_read_is_not_written(
    monkeypatch: pytest.MonkeyPatch, module: Any, limit: str, fits: Any, why: str
) -> None:
    monkeypatch.setattr(module, limit, 1000)
    assert decode_document(encode_document({"format": FORMAT, "value": fits}), "file")["value"] == fits
    with pytest.raises(ValueError, match=rf"Expected a document of up to {why}"):
        encode_document({"format": FORMAT, "value": (fits * 2)[:1000]})


@pytest.mark.parametrize(
    "text", ["a\nb", "\x1b[2J", "\ud800", "x" * 100_000, "\N{RIGHT-TO-LEFT OVERRIDE}", "a\0"]
)
def test_what_comes_from_a_file_is_shown_on_one_short_line(text: str) -> None:
    for error in (CorruptCheckpoint(text, "why"), CorruptCheckpoint("file", text)):
        check_refusal(error)
    assert one_line("plain \N{SNOWMAN} text") == "plain \N{SNOWMAN} text"
