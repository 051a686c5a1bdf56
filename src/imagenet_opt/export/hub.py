"""Writes the network of a checkpoint as a repository of the Hugging Face Hub, which timm opens, and uploads it."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import huggingface_hub
import timm
import torch
from timm.models import save_for_hf

from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.data.transforms.resize import MEAN, STD
from imagenet_opt.errors import ConfigError, ModelError, named_first_line, printable
from imagenet_opt.export.export import compare, is_timms, logits_of, random_images, written
from imagenet_opt.model.saved_network import open_network
from imagenet_opt.run.record import RECORD, RunRecord, hash_of, read_record

_CARD, _WEIGHTS = "README.md", "model.safetensors"
_OF_ARCHITECTURE = ("architecture", "fixed_input_size", "min_input_size", "first_conv", "classifier")
"""Keys of timm's pretrained_cfg; its other keys describe timm's weights, with their license and papers."""


def export_hub(ckpt: Path, record: Path, repo: str, folder: Path | None, image_size: int | None) -> str:
    """Write the repository into `folder`; with None into a temporary folder, which is uploaded to OWNER/NAME `repo`.

    record: record.json of the run, which need not exist. image_size: in pixels; None for that of the checkpoint.
    Returns a message for the user. Raises CheckpointError; ConfigError for an unusable folder, record, token or image
    size; ModelError for a network that timm does not have, or that timm opens with different logits.
    """
    if folder is None and huggingface_hub.get_token() is None:
        raise ConfigError(
            f"hub={repo} needs a token: log in with `hf auth login`, set HF_TOKEN, or use --dry-run FOLDER"
        )
    with TemporaryDirectory() if folder is None else written(folder, "another folder with --dry-run FOLDER") as parent:
        content = Path(parent) / "content"
        outcome = _write(ckpt, record, repo, content, image_size)
        if folder is None:
            done, place = _upload(repo, content), f"hf-hub:{repo}"
        else:
            os.replace(content, folder)
            done, place = f"wrote {folder}", f"local-dir:{folder}"
    return f"{done}; {outcome}\nit opens with timm.create_model({place!r}, pretrained=True)"


def _write(ckpt: Path, record: Path, repo: str, folder: Path, image_size: int | None) -> str:
    """Write the files, and open them with timm. Returns a sentence about the difference of the logits."""
    network: Any
    network, config = open_network(ckpt)
    if not is_timms(config):
        raise ModelError(f"hub={repo}: timm has no model.blurpool or model.small_stem; leave hub= out to write a file")
    known = read_record(record) if record.exists() else None
    images = random_images(size := image_size or config["image_size"])
    facts = network.pretrained_cfg
    network.pretrained_cfg = {key: facts[key] for key in _OF_ARCHITECTURE if key in facts} | _view(config, size)
    names = {"label_names": [str(name) for name in config.get("classes", ())]}
    options = dict(config.get("options") or {})
    with torch.inference_mode():
        logits = logits_of(network, images, ckpt)
        save_for_hf(network, str(folder), names, options, safe_serialization=True)
        outcome = compare(logits, timm.create_model(f"local-dir:{folder}", pretrained=True).eval()(images), folder)
    (folder / _WEIGHTS).chmod((folder / "config.json").stat().st_mode)  # else readable by its owner only
    lines = _card(repo, config, known, hash_of(ckpt))
    (folder / _CARD).write_text("".join(f"{printable(line)}\n" for line in lines), encoding="utf-8")
    return outcome


def _view(config: Mapping[str, Any], size: int) -> dict[str, Any]:
    """How the run validated, by timm's names."""
    filter = config.get("val_interpolation") or LoaderOptions.interpolation
    return {
        "input_size": (3, size, size),
        "mean": tuple(config.get("mean") or MEAN),
        "std": tuple(config.get("std") or STD),
        "crop_pct": config.get("val_crop_ratio") or LoaderOptions.val_crop_ratio,
        "interpolation": "box" if filter == "area" else filter,  # Pillow's name for averages of areas
    }


def _card(repo: str, config: Mapping[str, Any], record: RunRecord | None, sha256: str) -> Iterator[str]:
    """Lines of the model card. All numbers are those of the record. sha256: of the checkpoint."""
    yield from ("---", "library_name: timm", "pipeline_tag: image-classification", "tags:", "- imagenet-opt", "---")
    yield from (
        f"# {repo.partition('/')[2]}",
        "",
        f"timm's `{config['name']}` with {config['num_classes']} classes.",
        "",
    )
    yield from (f'    network = timm.create_model("hf-hub:{repo}", pretrained=True)', "", "| | |", "|---|---|")
    found = record.evaluation if record is not None else None
    if found is not None and found.sha256 == sha256:
        top5 = "" if found.top5 is None else f", top-5 {found.top5:.2%}"
        mirror = ", mean of the image and its mirror image" if found.tta else ""
        yield f"| accuracy | top-1 {found.top1:.2%}{top5} of {sum(found.images)} validation images |"
        yield f"| evaluated at | {found.image_size} px, {found.interpolation}, crop {found.crop_ratio:.3g}{mirror} |"
    else:
        of = "" if found is None else f"; {RECORD} has that of other weights"
        yield f"| accuracy | not known{of}: `imagenet-opt evaluate ckpt=RUN_FOLDER data.root=FOLDER` measures it |"
    if record is None:
        yield f"| run | not known: the checkpoint had no {RECORD} |"
    else:
        price = "" if record.dollars is None else f", {record.dollars:.2f} dollars"
        yield f"| recipe | {record.experiment or 'of its own'}, SHA-256 `{record.recipe_sha256}` |"
        yield f"| run | {record.epochs:.4g} epochs of {record.train_images} images, batches of {record.global_batch} |"
        yield f"| machine | {record.num_gpus} x {record.device}, {record.hours:.3g} hours{price} |"
        yield f"| versions | {', '.join(f'{name} {version}' for name, version in record.versions.items())} |"
    yield "| license of the weights and of the images | not known |"


def _upload(repo: str, folder: Path) -> str:
    """Upload the folder; the model card of a repository is kept. Raises ConfigError."""
    hub = huggingface_hub.HfApi(library_name="imagenet-opt")
    try:
        hub.create_repo(repo, exist_ok=True)
        kept = [_CARD] if hub.file_exists(repo, _CARD) else None
        hub.upload_folder(repo_id=repo, folder_path=folder, ignore_patterns=kept, commit_message="Add network")
    except Exception as error:  # of the Hub, the network or the token, of many types
        reason, remedy = named_first_line(error), "check the name, the network, and that the token may write there"
        raise ConfigError(f"hub={repo} was not uploaded: {reason}; {remedy} (`hf auth login`)") from error
    return f"uploaded {repo}{', whose README.md is kept' if kept else ''}"
