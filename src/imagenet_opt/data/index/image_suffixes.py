"""Which files of a class folder are images, by the ends of their names in lower case."""

IMAGE_SUFFIXES = (".jpeg", ".jpg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
