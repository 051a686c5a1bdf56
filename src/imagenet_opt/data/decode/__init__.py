"""Encoded images become pixels, of the crop alone where that can be."""
