import pytest

from torchdata_insitu.fetch.byte_span import ByteSpan


@pytest.mark.parametrize(
    "span, part", [(ByteSpan(2, 5), b"cde"), (ByteSpan.last(3), b"hij"), (ByteSpan(4, 4), b"")]
)
def test_a_span_is_as_long_as_what_it_stands_for(span, part):
    assert b"abcdefghij"[span.start : span.stop or None] == part
    assert span.n_bytes == len(part)


def test_spans_from_the_beginning_sort_by_it():
    spans = [ByteSpan(9, 10), ByteSpan(0, 4), ByteSpan(3, 5)]
    assert sorted(spans) == [ByteSpan(0, 4), ByteSpan(3, 5), ByteSpan(9, 10)]
