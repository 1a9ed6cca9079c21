"""The main job: a six-hour forecast trained in place on a Zarr archive, killed and resumed.

Run it from the root of the repository with ``python -m examples.storm_forecast``.

Read it in this order: ``data.py`` (what a batch holds and where it comes from), ``model.py``,
``train.py`` (the loop and its checkpoint), ``kill_and_resume.py``, ``scores.py``, ``figure.py``,
and ``__main__.py``, which calls them.
"""
