"""The report of a run as one HTML file: figures, texts and the page that holds them."""

from pathlib import Path

FOLDER = Path(__file__).parent
"""Where style.css lies, which other pages include."""
