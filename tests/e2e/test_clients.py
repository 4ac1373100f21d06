"""Third-party clients, unmodified: those of tests/clients that CI runs. scripts/clients runs all of them."""
import pathlib
import sys

import pytest
from harness import ROOT, Daemon

sys.path.insert(0, str(ROOT / "tests" / "clients"))
import clients  # noqa: E402
import common  # noqa: E402

SHARE = {line.split("[")[0].split("==")[0] for line in (pathlib.Path(clients.__file__).parent / "share.txt").read_text().split("\n\n")[0].split("\n")[1:]}
CHECKS = [c for c in common.CHECKS if c[0] in SHARE | {"openai"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("template") / "template.jinja"
    path.write_text(clients.TEMPLATE, encoding="utf-8")
    with Daemon("--chat-template", path) as d:
        yield d


def test_all_of_the_share_is_installed():
    assert SHARE <= {c[0] for c in CHECKS} and all(common.version(name) for name in SHARE), SHARE


@pytest.mark.parametrize("package, feature, check", CHECKS, ids=[f"{c[0]}: {c[1]}" for c in CHECKS])
def test_a_client_works(server, package, feature, check):
    check(server)
