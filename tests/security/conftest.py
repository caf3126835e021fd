import pytest

from tests.security.payload import Payload


@pytest.fixture
def payload(tmp_path):
    """A payload, held not to have run when the test ends."""
    made = Payload(tmp_path / "payload-ran")
    yield made
    assert not made.witness.exists()
