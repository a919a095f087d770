"""Numbers in JSON: infinities are words, text stays text, and NaN is never written."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformesh.files.json_numbers import as_json_value, as_number, dump_json, parse_json


@given(st.recursive(st.floats(allow_nan=False) | st.text() | st.none() | st.booleans(), st.lists, max_leaves=8))
def test_numbers_and_words_survive_json(value):
    """Every number comes back as itself, and text stays text but where a number is expected."""

    def back(read, wrote):
        if isinstance(wrote, list):
            return len(read) == len(wrote) and all(map(back, read, wrote))
        return as_number(read) == wrote if isinstance(wrote, float) else read == wrote

    assert back(parse_json(dump_json(value), "x"), value)


def test_nan_is_never_written():
    with pytest.raises(ValueError, match="NaN"):
        as_json_value({"x": [math.nan]})
    with pytest.raises(ValueError, match="must be a number"):
        as_number(math.nan)
