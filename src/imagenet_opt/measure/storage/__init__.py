"""What storage gives: reads, page cache, Lustre."""
