"""A Lightning training on two processes that is told to end twice, and resumed on fewer.

Run `python -m examples.lightning_ddp`. It trains on the archive of `examples/storm_forecast` four
times, each a job of its own with Lightning's `ddp` on the CPU: once without an interruption; then
until a SIGTERM in mid-epoch, on two processes until the next SIGTERM, and on one process to the
end. The ledger says which samples each step was trained on.

- `training.py`: the model, the data module and one job
- `ledger.py`: who trained on which sample, and what the jobs amount to
- `jobs.py`: starts jobs and sends them signals
- `config.yaml`: the same for LightningCLI: `python -m examples.lightning_ddp.cli fit --config
  examples/lightning_ddp/config.yaml`
"""
