import flatbuffers
import pytest

from pipeline.program.flatbuffer import CorruptError, root


def file_of_tables(number, text):
    """Return a file whose root has a vector that names one table again and again."""
    builder = flatbuffers.Builder()
    word = builder.CreateString(text)
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, word, 0)
    table = builder.EndObject()
    builder.StartVector(4, number, 4)
    for _ in range(number):
        builder.PrependUOffsetTRelative(table)
    vector = builder.EndVector()
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, vector, 0)
    builder.Finish(builder.EndObject())
    return root(memoryview(bytes(builder.Output())))


def test_texts_of_tables():
    assert [each.text(0) for each in file_of_tables(2, "word").tables(0)] == ["word", "word"]


def test_a_long_vector_that_many_tables_share_is_not_read_for_each():
    with pytest.raises(CorruptError, match="more data than it contains"):
        [each.text(0) for each in file_of_tables(1000, 10_000 * "x").tables(0)]
