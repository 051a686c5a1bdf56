"""Commands that read folders only refuse a URL in one line, before anything is read."""

import pytest

from imagenet_opt.cli import bench, pack
from imagenet_opt.errors import ConfigError
from imagenet_opt.probe.testbed import Testbed
from tests.conftest import composed

ROOT = "data.root=s3://no-such-bucket/in1k"


def test_commands_that_read_folders_refuse_a_url() -> None:
    refused = {
        "imagenet-opt bench": lambda: bench.main([ROOT]),
        "a measurement": lambda: Testbed(composed("data=folder", ROOT)),
    }
    for command, call in refused.items():
        with pytest.raises(ConfigError, match=f"^{command} does not work with {ROOT} yet, only with folders") as raised:
            call()
        assert "\n" not in str(raised.value)
    for words in ((ROOT, "out=x"), ("data.root=x", "out=gs://b/c"), ("out=s3://b/c", "--verify")):
        with pytest.raises(ConfigError, match="imagenet-opt pack does not read or write URLs yet"):
            pack.parse(list(words))
