"""Show where the time of an epoch goes, by stage and thread.

Usage: ``python -m benchmarks.profile --layouts wb2 raw8``; ``--warm`` for epochs that read nothing,
``--store`` for another way to read. Epochs are measured in turns, each kind by a loader of its own:
plain ones; with the functions of the library timed, which gives the stages; with hand-overs
counted; and one in which fresh memory is traced. Everything is wrapped from outside while it is
measured, and what the wrapping costs is printed first. ``--sampler`` lists instead what each thread
was found at.
"""

from benchmarks.stages.epoch_profile import main

if __name__ == "__main__":
    main()
