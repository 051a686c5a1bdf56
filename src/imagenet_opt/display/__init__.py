"""How things look: tables, pages, progress."""

from pathlib import Path

STYLES = Path(__file__).parent
"""Where style.css lies, which every page includes."""
