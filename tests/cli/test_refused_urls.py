"""Commands name the cause and the remedy in one line when a storage refuses their requests."""

from collections.abc import Callable
from pathlib import Path

import pytest

from imagenet_opt.cli import check, export, pack
from imagenet_opt.errors import StorageFailed
from tests.faulty_proxy import faulty_proxy

COMMANDS: dict[str, tuple[Callable[[list[str]], None], str]] = {
    "data.root": (check.main, "data.root={url} data.cache_dir={folder}"),
    "out": (pack.main, "data.root={images} out={url} data.cache_dir={folder}"),
    "ckpt": (export.main, "ckpt={url}"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_refusal_is_one_line_with_key_and_remedy(
    images_root: Path, bucket: str, object_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    command, words = COMMANDS[name]
    arguments = words.format(url=f"{bucket}/x", folder=tmp_path, images=images_root).split()
    remedies = {"403": "no right to do that", "301": "set AWS_REGION"}
    with faulty_proxy(object_server) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.address)
        for fault, remedy in remedies.items():
            proxy.fault = lambda number, path, fault=fault: fault  # type: ignore[misc]
            with pytest.raises(StorageFailed) as raised:
                command(arguments)
            message = str(raised.value)
            assert "\n" not in message and message.startswith(f"{bucket}/x")
            assert f"({name})" in message and remedy in message
