"""Text of timestamps, compared with the standard library."""

import time

from hypothesis import given
from hypothesis import strategies as st

from svc.timestamps import date_and_time, rfc3339


@given(st.floats(0, 253_402_300_799))
def test_timestamps_agree_with_strftime(seconds: float) -> None:
    moment = time.gmtime(seconds)
    assert date_and_time(seconds) == time.strftime("%Y-%m-%d %H:%M:%S", moment)
    assert rfc3339(seconds) == time.strftime("%Y-%m-%dT%H:%M:%SZ", moment)
