"""The one trainer: any learning process of TFF, with checkpoints, log, observers and reports."""
