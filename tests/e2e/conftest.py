import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(__file__))

import harness  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "share: the quick share that the ASan build runs too")
    config.addinivalue_line("markers", "hand_over: what the TSan build runs: requests between loop and engine")


@pytest.fixture(scope="session")
def daemon():
    """One daemon for all tests that need no special options."""
    with harness.Daemon() as d:
        yield d


@pytest.fixture(scope="session")
def client(daemon):
    return daemon.client()
