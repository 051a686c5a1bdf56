"""Tables, HTML pages and progress bars."""
