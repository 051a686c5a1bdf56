"""How things look: tables, pages, progress."""
