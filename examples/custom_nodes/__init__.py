"""A chain by hand: two archives in one stream, behind them a node of your own, resumed exactly.

Run it from the root of the repository with ``python -m examples.custom_nodes``.

Read it in this order: ``running_scale.py`` (a node with a state of its own: the part that is
yours), ``chain.py`` (the nodes from two archives to a loader), ``archives.py`` (what stands for
your data), and ``__main__.py``, which runs the stream once in one piece and once in two.
"""
