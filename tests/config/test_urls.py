"""Commands that read folders only refuse a URL in one line, before anything is read."""

import pytest

from imagenet_opt.cli import pack
from imagenet_opt.errors import ConfigError

ROOT = "data.root=s3://no-such-bucket/in1k"


def test_commands_that_read_folders_refuse_a_url() -> None:
    for words in ((ROOT, "out=x"), ("data.root=x", "out=gs://b/c"), ("out=s3://b/c", "--verify")):
        with pytest.raises(ConfigError, match="imagenet-opt pack does not read or write URLs yet"):
            pack.parse(list(words))
