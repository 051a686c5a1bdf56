"""Commands name the cause and the remedy in one line when a storage refuses their requests."""

from collections.abc import Callable
from pathlib import Path

import pytest

from imagenet_opt.cli import check, evaluate, export, pack, plan
from imagenet_opt.errors import StorageFailed
from tests.faulty_proxy import faulty_proxy

COMMANDS: dict[str, tuple[Callable[[list[str]], None], str]] = {
    "data.root": (check.main, "data.root={url}"),
    "data.root of plan": (plan.main, "data.root={url}"),
    "data.root of pack": (pack.main, "data.root={url} out={folder}/out"),
    "out": (pack.main, "data.root={images} out={url}"),
    "out of --verify": (pack.main, "out={url} --verify"),
    "ckpt": (export.main, "ckpt={url}"),
    "ckpt of evaluate": (evaluate.main, "ckpt={url} data.root={images}"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_refusal_is_one_line_with_key_and_remedy(
    images_root: Path, bucket: str, object_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    command, words = COMMANDS[name]
    arguments = words.format(url=f"{bucket}/x", folder=tmp_path, images=images_root).split()
    if "ckpt" not in name and "verify" not in name:
        arguments.append(f"data.cache_dir={tmp_path}/cache")
    remedies = {
        "403": "no right to do that", "key": "credentials are refused", "skewed": "clock of this machine is wrong",
        "301": "set AWS_REGION",
    }  # fmt: skip
    with faulty_proxy(object_server) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.address)
        for fault, remedy in remedies.items():
            proxy.fault = lambda number, path, fault=fault: fault  # type: ignore[misc]
            with pytest.raises(StorageFailed) as raised:
                command(arguments)
            message = str(raised.value)
            assert "\n" not in message and message.startswith(f"{bucket}/x")
            assert f"({name.partition(' ')[0]})" in message and remedy in message
