"""Reads Parquet files without decoding what is not needed."""
