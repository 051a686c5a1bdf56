"""Photographs as a camera takes them: a sample's images, enlarged."""

from pathlib import Path

from PIL import Image

_SIZE = (4000, 3000)
_NUM_CLASSES = 80


def huge_folder(sample: Path) -> Path:
    return sample.with_name(f"{sample.name}-huge")


def huge_images(sample: Path, scratch: Path) -> Path:
    """Some of the sample's images at 12 megapixels, made once beside it."""
    folder = huge_folder(sample)
    for source in sorted(path for path in sample.iterdir() if path.is_dir())[:_NUM_CLASSES]:
        target = folder / source.name
        for file in sorted(source.iterdir())[:2]:
            if not (target / file.name).exists():
                target.mkdir(parents=True, exist_ok=True)
                with Image.open(file) as image:
                    image.convert("RGB").resize(_SIZE, Image.Resampling.BILINEAR).save(target / file.name, quality=90)
    return folder
