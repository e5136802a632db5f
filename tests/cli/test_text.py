"""How users, times and numbers look: no two alike, and none that steers a terminal."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.text import escaped, json_ready, uid_of, uid_text
from tests.helpers.strategies import BOUNDED

uids = st.one_of(
    st.integers(0, 2**63 - 1),
    st.text(min_size=1, max_size=20),
    st.from_regex(r"(str:){0,3}(int:)?[0-9]{1,20}", fullmatch=True),
)


@BOUNDED
@given(uids, uids)
def test_two_users_never_look_alike(one: str | int, other: str | int) -> None:
    is_same = str(one) == str(other)
    assert (uid_text(one) == uid_text(other)) == is_same
    assert (escaped(uid_text(one)) == escaped(uid_text(other))) == is_same
    is_same = (type(one), one) == (type(other), other)
    as_json = [json.dumps(json_ready({"uid": uid})) for uid in (one, other)]
    assert (as_json[0] == as_json[1]) == is_same


@pytest.mark.parametrize(
    "name",
    ["", "a\n", "x" * 256, "int:9223372036854775808", "int:" + "9" * 5_000, "\udcff"],
)
def test_what_names_no_user_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no uid: a string of 1 to 255 bytes"):
        uid_of(name)


@pytest.mark.parametrize(
    ("uid", "ready"),
    [
        (7, 7),
        ("7", "7"),
        (2**53, 2**53),
        (2**53 + 1, "int:9007199254740993"),
        ("int:9007199254740993", "str:int:9007199254740993"),
    ],
)
def test_an_integer_beyond_2_53_is_a_string_in_json(
    uid: str | int, ready: str | int
) -> None:
    record = {"seq": 1, "uid": uid}
    assert json_ready(record) == {"seq": 1, "uid": ready}
    assert record["uid"] == uid
