"""A folder of images becomes tar shards with an index."""
