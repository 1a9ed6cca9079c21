"""From a store's bytes to decoded chunks: stores, requests, reads, decoding."""
