"""Show where the time of an epoch goes, by stage and thread.

Usage: ``python benchmarks/profile.py --layouts wb2 raw8``; ``--warm`` for epochs that read nothing,
``--store`` for another way to read. Epochs are measured in turns, each kind by a loader of its own:
plain ones; with the functions of the library timed, which gives the stages; with hand-overs
counted; and one in which fresh memory is traced. Everything is wrapped from outside while it is
measured, and what the wrapping costs is printed first. ``--sampler`` lists instead what each thread
was found at.
"""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

if __name__ != "__main__":
    # The folder of a script is where Python looks for modules first, and `cProfile` of the standard
    # library imports the one that this file hides.
    _here = Path(__file__).resolve().parent
    _others = [folder for folder in sys.path if Path(folder).resolve() != _here]
    _hidden = importlib.machinery.PathFinder.find_spec(__name__, _others)
    sys.modules[__name__] = importlib.util.module_from_spec(_hidden)
    _hidden.loader.exec_module(sys.modules[__name__])
else:
    from stages.epoch_profile import main

    main()
