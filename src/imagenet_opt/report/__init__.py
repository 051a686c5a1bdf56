"""The report of a run as one HTML file: figures, texts and the page that holds them."""
