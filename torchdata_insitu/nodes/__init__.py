"""The chain as `torchdata.nodes`: one node a file."""
