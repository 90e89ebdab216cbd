"""The tests. Those in system/ need other programs."""

import pytest

# A failing assert in these modules shows its values, as in a test.
pytest.register_assert_rewrite("tests.helpers", "tests.service")
