"""What one visit to a GPU yields: quality and speed of the four mixers."""
