"""Copying drawn rows out of slots into batches."""
